package store

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"cucriu/internal/kit/imagedir"
)

// onTmpfs mounts a tmpfs of so many bytes.
func onTmpfs(t testing.TB, options string) string {
	t.Helper()
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, options))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// quickDir returns where a store can be made that does not wait for a disk.
func quickDir(t testing.TB) string {
	t.Helper()
	return filepath.Join(onTmpfs(t, "size=256m"), "job")
}

// TestACheckpointIsAnImage: it is known by the checksums in its record, in a copy elsewhere, too.
func TestACheckpointIsAnImage(t *testing.T) {
	s := openStore(t, quickDir(t))
	first, second := publish(t, s, 1, newMemory(1, 2)), publish(t, s, 2, newMemory(2, 2))
	copied := filepath.Join(t.TempDir(), "copy")
	must(t, os.CopyFS(copied, os.DirFS(first.Dir)))
	digest := first.Image().Digest()
	for _, dir := range []string{first.Dir, copied} {
		img := OpenImage(dir)
		summed, err := img.Verify(t.Context(), 1, func(int) {})
		if !img.IsCheckpoint() || img.Digest() != digest || digest == "" || !summed || err != nil {
			t.Errorf("%s: digest %s, want %s; verified: %v", dir, img.Digest(), digest, err)
		}
	}
	if second.Image().Digest() == digest {
		t.Error("two checkpoints have one digest")
	}
	must(t, os.WriteFile(filepath.Join(copied, recordName), []byte("{}"), 0o600))
	if img := OpenImage(copied); img.Digest() != "" || img.Check(t.Context()) == nil {
		t.Errorf("with a damaged record: digest %s", img.Digest())
	}
}

func TestACheckpointIsAnImageDirectoryOfItsOwn(t *testing.T) {
	for name, base := range map[string]string{
		"staged on the same file system": t.TempDir(),
		"staged in memory":               onTmpfs(t, "size=64m"),
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, filepath.Join(t.TempDir(), "job"))
			dir, err := s.StageDir(base, nil)
			must(t, err)
			m := newMemory(1, 9)
			m[3] = nil
			staged := stageImage(t, filepath.Join(dir, "image"), 1, m)
			want := content(t, staged)
			c, err := s.Publish(t.Context(), staged, goodInfo(t))
			must(t, err)
			must(t, s.RemoveStage(dir))
			if _, err := os.Lstat(dir); !os.IsNotExist(err) {
				t.Errorf("the staging directory is still there: %v", err)
			}
			got := content(t, c.Dir)
			delete(got, recordName)
			files := len(got) // how many hold the pages depends on which threads were quick
			wantRestored(t, c, m)
			for _, content := range []map[string]string{want, got} {
				if name == "staged in memory" { // the pages were written again
					maps.DeleteFunc(content, func(name, _ string) bool {
						return name == imagedir.ManifestName || strings.HasPrefix(name, "cucriu-pages-")
					})
				}
			}
			if !maps.Equal(want, got) {
				t.Fatalf("the files differ: %v, want %v", sortedNames(got), sortedNames(want))
			}
			if diff := cmp.Diff(goodInfo(t), c.Info); diff != "" || c.Name != "000001" || c.Generation != 1 {
				t.Errorf("%+v\n%s", c, diff)
			}
			again := list(t, s)
			if len(again) != 1 || again[0].Bytes != c.Bytes || again[0].Shared != 0 || again[0].New != c.Bytes || len(again[0].Files) != files {
				t.Errorf("listed as %+v", again)
			}
			wantWhole(t, s, "000001")
			manifest, err := imagedir.ReadManifest(c.Dir)
			must(t, err)
			must(t, manifest.CheckPages(c.Dir))
			if publish(t, s, 2, m).Name != "000002" {
				t.Error("the second checkpoint does not have the next number")
			}
		})
	}
}

func TestAJobWithoutCUDAHasCheckpointsToo(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "job"))
	staged := t.TempDir()
	must(t, os.WriteFile(filepath.Join(staged, "inventory.img"), []byte("x"), 0o600))
	c, err := s.Publish(t.Context(), staged, goodInfo(t))
	must(t, err)
	wantWhole(t, s, c.Name)
}

func TestWhatIsNoFileIsNotPublished(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "job"))
	for name, put := range map[string]func(path string) error{
		"a symbolic link": func(path string) error { return os.Symlink("/etc/hostname", path) },
		"a FIFO":          func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a socket":        func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) },
		"a device":        func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) },
		"a control character": func(path string) error {
			return os.WriteFile(filepath.Join(filepath.Dir(path), "a\nb"), nil, 0o600)
		},
		"the name of a mark": func(path string) error {
			return os.WriteFile(filepath.Join(filepath.Dir(path), pinnedName), nil, 0o600)
		},
		"the name of a record": func(path string) error {
			return os.WriteFile(filepath.Join(filepath.Dir(path), recordName), nil, 0o600)
		},
		"a damaged manifest": func(path string) error {
			return os.Truncate(filepath.Join(filepath.Dir(path), imagedir.ManifestName), 10)
		},
	} {
		t.Run(name, func(t *testing.T) {
			staged := stageImage(t, filepath.Join(t.TempDir(), "image"), 1, newMemory(1, 1))
			must(t, put(filepath.Join(staged, "odd")))
			if c, err := s.Publish(t.Context(), staged, goodInfo(t)); err == nil {
				t.Fatalf("published as %s", c.Name)
			}
			wantNothingLeft(t, s)
		})
	}
	t.Run("nothing", func(t *testing.T) {
		_, err := s.Publish(t.Context(), t.TempDir(), goodInfo(t))
		wantError(t, err, "empty")
		wantNothingLeft(t, s)
	})
}

// wantNothingLeft fails if the folder of the checkpoints is not empty.
func wantNothingLeft(t testing.TB, s *Store) {
	t.Helper()
	entries, err := os.ReadDir(s.path(CheckpointsDir))
	must(t, err)
	if len(entries) > 0 {
		t.Errorf("%s is left", entries[0].Name())
	}
}

func TestAFullDiskHarmsNoOlderCheckpoint(t *testing.T) {
	disk := onTmpfs(t, "size=32m")
	s := openStore(t, filepath.Join(disk, "job"))
	publish(t, s, 1, newMemory(1, 16))
	before := content(t, s.dir)
	staged := stageImage(t, filepath.Join(t.TempDir(), "image"), 2, newMemory(2, 120))
	_, err := s.Publish(t.Context(), staged, goodInfo(t))
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("error %v, want ENOSPC", err)
	}
	if !regexp.MustCompile(`the image takes up to [\d.]+ MiB, and .*/job/checkpoints has [\d.]+ MiB free for it: free [\d.]+ MiB there$`).MatchString(err.Error()) {
		t.Error(err)
	}
	if diff := cmp.Diff(before, content(t, s.dir)); diff != "" {
		t.Fatal("the directory is not as it was")
	}
	// The next one need not be tried before there is more room.
	full := new(NoRoomError)
	if !errors.As(err, &full) || full.Had <= 0 {
		t.Fatalf("%v does not say what was free", err)
	}
	if err := s.CheckRoom(full.Had); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "hardly more than when one did not fit") {
		t.Errorf("%v", err)
	}
	must(t, s.CheckRoom(full.Had-flushBytes))
	var fs unix.Statfs_t
	must(t, unix.Statfs(disk, &fs))

	// Now nothing at all is free: neither opening nor pruning needs room.
	must(t, s.Verify(t.Context(), list(t, s)[0], 1, nil))
	publish(t, s, 3, newMemory(3, 4))
	must(t, s.Verify(t.Context(), list(t, s)[1], 1, nil))
	must(t, s.Close())
	fillDisk(t, disk)
	s = openStore(t, s.dir)
	if err := s.CheckRoom(0); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v", err)
	}
	wantWhole(t, s, "000001 000002")
	removed, err := s.Prune(t.Context(), Policy{Keep: 1})
	must(t, err)
	if names(removed) != "000001" {
		t.Errorf("pruned %q", names(removed))
	}
	wantWhole(t, s, "000002")
	must(t, s.Close())
	if o, err := s.Owner(); err != nil || !o.Released || o.Generation != 2 {
		t.Errorf("after the end the owner is %+v, %v", o, err)
	}
}

func fillDisk(t testing.TB, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "ballast"))
	must(t, err)
	defer f.Close()
	for size := 1 << 20; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
}

func TestAPublicationThatIsGivenUpLeavesNothing(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "job"))
	staged := stageImage(t, filepath.Join(t.TempDir(), "image"), 1, newMemory(1, 64))
	ctx, cancel := context.WithCancel(t.Context())
	s.interrupt = func(step string) error {
		if step == stepFile {
			cancel()
		}
		return nil
	}
	_, err := s.Publish(ctx, staged, goodInfo(t))
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	wantNothingLeft(t, s)
}

// TestTheNextDumpIsStagedWhileTheLastIsPublished: a publication may take long.
func TestTheNextDumpIsStagedWhileTheLastIsPublished(t *testing.T) {
	s := openStore(t, quickDir(t))
	first := publish(t, s, 1, newMemory(1, 2))
	staged := stageImage(t, filepath.Join(t.TempDir(), "image"), 2, newMemory(2, 2))
	s.interrupt = func(step string) error {
		if step != stepFile {
			return nil
		}
		dir, err := s.StageDir("", nil)
		must(t, err)
		must(t, s.RemoveStage(dir))
		must(t, s.Pin(first.Name, true))
		must(t, s.Verify(t.Context(), first, 1, nil))
		must(t, s.Fenced())
		if all := list(t, s); len(all) != 1 || !all[0].Verified || !all[0].Pinned {
			t.Errorf("listed as %+v", all)
		}
		return nil
	}
	second, err := s.Publish(t.Context(), staged, goodInfo(t))
	must(t, err)
	wantWhole(t, s, first.Name+" "+second.Name)
}

func TestAVerificationThatIsGivenUpSaysNothing(t *testing.T) {
	s := openStore(t, quickDir(t))
	c := publish(t, s, 1, newMemory(1, 16))
	must(t, s.Verify(t.Context(), c, 1, nil))
	for _, least := range []int64{1 << 20, 4 << 20} { // in the files of criu, and in the pages
		ctx, giveUp := context.WithCancelCause(t.Context())
		var done atomic.Int64
		err := s.Verify(ctx, c, 1, func(n int) {
			if done.Add(int64(n)) > least {
				giveUp(errors.New("a preemption"))
			}
		})
		if err == nil || errors.As(err, new(*DamageError)) {
			t.Errorf("error %v", err)
		}
	}
	if all := list(t, s); !all[0].Verified {
		t.Error("the mark of before is gone")
	}
}

func TestWhatNoSupervisorKnowsIsNotPublished(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "job"))
	staged := stageImage(t, filepath.Join(t.TempDir(), "image"), 1, newMemory(1, 1))
	for name, damage := range map[string]func(*Info){
		"no time":             func(i *Info) { i.CreatedAt = time.Time{} },
		"no root":             func(i *Info) { i.RootPID = 0 },
		"a clock that paints": func(i *Info) { i.Kernel = "\x1b[2J" },
		"a long name":         func(i *Info) { i.Command = strings.Repeat("x", maxText+1) },
		"a negative clock":    func(i *Info) { i.Clocks.Monotonic = -1 },
		"a negative pause":    func(i *Info) { i.Pause = -1 },
		"a GPU that paints":   func(i *Info) { i.GPUs[0].Model = "\x1b[2J" },
	} {
		t.Run(name, func(t *testing.T) {
			info := goodInfo(t)
			damage(&info)
			if _, err := s.Publish(t.Context(), staged, info); err == nil {
				t.Error("published")
			}
		})
	}
	wantNothingLeft(t, s)
}
