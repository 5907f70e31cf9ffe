package store

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestEveryDamagedFileIsNamed damages each file of the newest checkpoint in turn, in every
// way. The one before stays whole.
func TestEveryDamagedFileIsNamed(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "job"))
	publish(t, s, 1, newMemory(1, 6))
	c := publish(t, s, 2, newMemory(2, 6))
	files := content(t, c.Dir)
	for how, damage := range map[string]func(path, data string) error{
		"removed":   func(path, _ string) error { return os.Remove(path) },
		"cut off":   func(path, data string) error { return os.Truncate(path, int64(len(data)-1)) },
		"longer":    func(path, data string) error { return os.WriteFile(path, []byte(data+"x"), 0o600) },
		"first bit": func(path, data string) error { return flip(path, data, 0) },
		"a middle bit": func(path, data string) error {
			return flip(path, data, len(data)/2)
		},
		"last bit": func(path, data string) error { return flip(path, data, len(data)-1) },
		"a link": func(path, _ string) error {
			return errors.Join(os.Rename(path, path+".away"), os.Symlink(filepath.Base(path)+".away", path))
		},
		"a FIFO":      func(path, _ string) error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) },
		"a directory": func(path, _ string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
	} {
		t.Run(how, func(t *testing.T) {
			for _, name := range sortedNames(files) {
				data := files[name]
				if data == "" && slices.Contains([]string{"cut off", "first bit", "a middle bit", "last bit"}, how) {
					continue
				}
				path := filepath.Join(c.Dir, name)
				must(t, s.Verify(t.Context(), c, 1, nil))
				must(t, damage(path, data))
				err := verifyNewest(t, s)
				must(t, os.RemoveAll(path))
				must(t, os.RemoveAll(path+".away"))
				must(t, os.WriteFile(path, []byte(data), 0o600))
				wantError(t, err, name)
				wantError(t, err, c.Name)
				older := list(t, s)[0]
				must(t, s.Check(t.Context(), older))
			}
		})
	}
	wantWhole(t, s, "000001 000002")
	if all := list(t, s); !all[1].Verified {
		t.Error("it is whole, and not marked as verified")
	}
}

// TestACheckpointThatCannotBeReadNowIsNotCalledDamaged: the job would be set back to an older one.
func TestACheckpointThatCannotBeReadNowIsNotCalledDamaged(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "job"))
	c := publish(t, s, 1, newMemory(1, 6))
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}))
	checked, verified := s.Check(t.Context(), c), s.Verify(t.Context(), c, 1, nil)
	_, listed := s.Checkpoints()
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	for what, err := range map[string]error{"check": checked, "verify": verified, "list": listed} {
		if !errors.Is(err, unix.EMFILE) || errors.As(err, new(*DamageError)) {
			t.Errorf("%s: got %v, want EMFILE and no damage", what, err)
		}
	}
	wantWhole(t, s, "000001")
}

func flip(path, data string, at int) error {
	damaged := []byte(data)
	damaged[at] ^= 1
	return os.WriteFile(path, damaged, 0o600)
}

// verifyNewest verifies the newest checkpoint. If that fails, the mark is gone, and the quick
// check fails as well, unless a chunk of the GPU's pages is damaged.
func verifyNewest(t testing.TB, s *Store) error {
	t.Helper()
	all := list(t, s)
	newest := all[len(all)-1]
	quick := s.Check(t.Context(), newest)
	err := s.Verify(t.Context(), newest, 2, nil)
	if err == nil {
		return nil
	}
	if quick == nil && !strings.Contains(err.Error(), "the chunk of the memory at") {
		t.Errorf("the quick check does not see: %v", err)
	}
	if all = list(t, s); all[len(all)-1].Verified {
		t.Errorf("still marked as verified: %v", err)
	}
	return err
}

func TestADamagedChunkIsNamed(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "job"))
	c := publish(t, s, 1, newMemory(1, 6))
	name := "cucriu-pages-" + dumpID(1) + "-7-1.img"
	data := content(t, c.Dir)[name]
	must(t, flip(filepath.Join(c.Dir, name), data, 4096+256<<10+5)) // the second of its chunks: the fourth in memory
	must(t, s.Check(t.Context(), c))
	err := s.Verify(t.Context(), c, 2, nil)
	var damage *DamageError
	if !errors.As(err, &damage) || damage.Checkpoint != c.Name {
		t.Fatalf("error %v", err)
	}
	wantError(t, err, name)
	wantError(t, err, "at 0x7f00000c0000 is damaged")
}

func TestACheckpointThatWasExchangedIsNotTakenForTheOneThatWasListed(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "job"))
	a, b := publish(t, s, 1, newMemory(1, 2)), publish(t, s, 2, newMemory(2, 2))
	must(t, os.Rename(a.Dir, a.Dir+"0"))
	must(t, os.Rename(b.Dir, a.Dir))
	wantError(t, s.Check(t.Context(), a), "replaced")
}
