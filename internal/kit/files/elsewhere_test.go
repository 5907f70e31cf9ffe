package files

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestWhatGoesElsewhereHasItsContent(t *testing.T) {
	dir := tempDir(t)
	at := func(base string) string { return filepath.Join(dir, base) }
	var orders []order
	for base, flags := range map[string]int{
		"read": unix.O_RDONLY, "asked for": unix.O_RDONLY, "replaced": unix.O_RDONLY, "log": unix.O_WRONLY | unix.O_APPEND, "own log": unix.O_RDWR | unix.O_APPEND, "written": unix.O_RDWR,
	} {
		orders = append(orders, jobFile(write(t, at(base), base), flags))
	}
	root := startJob(t, orders...)
	also := map[string]uint64{at("asked for"): inodeAt(t, at("asked for")), at("replaced"): inodeAt(t, at("replaced")) + 1, at("not held"): 1}
	checkpoint := save(t, root, Options{Elsewhere: true, Also: also, Except: []string{at("written")}})
	want := map[string]use{"read": useRead, "asked for": useContent, "replaced": useRead, "log": useContent, "own log": useContent}
	if diff := cmp.Diff(want, usesBelow(t, checkpoint, dir)); diff != "" {
		t.Error(diff)
	}
	if saved, want := savedBytes(t, checkpoint), int64(len("asked for"+"log"+"own log")); saved != want {
		t.Errorf("%d bytes were saved, not %d", saved, want)
	}
	must(t, errors.Join(os.Remove(at("asked for")), os.Remove(at("log")), os.Remove(at("own log")), os.Remove(at("written"))))
	_, err := PutBack(t.Context(), checkpoint, PutBackOptions{OnlyMissing: true})
	must(t, err)
	files := map[string]string{"read": "read", "asked for": "asked for", "replaced": "replaced", "log": "log", "own log": "own log"}
	if diff := cmp.Diff(files, namesIn(t, dir)); diff != "" {
		t.Error(diff)
	}
}

func TestWhatGoesElsewhereHasALimit(t *testing.T) {
	large := write(t, filepath.Join(tempDir(t), "large"), strings.Repeat("x", 3<<20))
	root := startJob(t, jobFile(large, unix.O_RDONLY))
	err := Foresee(t.Context(), root, Options{Elsewhere: true, Also: map[string]uint64{large: inodeAt(t, large)}, Limit: 2 << 20})
	want := "the files that move with the job hold 3.0 MiB, which is more than the limit of 2.0 MiB: the largest is " + large + " (3.0 MiB): let it have the largest on a file system that both hosts have mounted"
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestOnlyWhatIsMissingIsMade: what is there is not changed, not even its mode.
func TestOnlyWhatIsMissingIsMade(t *testing.T) {
	for title, tt := range map[string]struct {
		change func(path, other string) error
		says   string
	}{
		"another content": {
			func(path, _ string) error { return os.WriteFile(path, []byte("another"), 0o600) },
			"DIR: it already exists, differs from the checkpoint, and must not be changed",
		},
		"no content": {
			func(path, _ string) error { return os.Truncate(path, 0) },
			"DIR: it already exists, differs from the checkpoint, and must not be changed",
		},
		"the same content": {func(path, _ string) error { return os.Chmod(path, 0o600) }, ""},
		"a name is another file": {
			func(_, other string) error { return errors.Join(os.Remove(other), os.WriteFile(other, nil, 0o600)) },
			"DIR-2 and DIR are different files now, but were the same one at the checkpoint: move one of them away",
		},
	} {
		t.Run(title, func(t *testing.T) {
			path := write(t, filepath.Join(tempDir(t), "file"), "content")
			must(t, os.Link(path, path+"-2"))
			checkpoint := save(t, startJob(t, jobFile(path, unix.O_RDWR), jobFile(path+"-2", unix.O_RDONLY)), Options{Elsewhere: true})
			must(t, tt.change(path, path+"-2"))
			before := scene{dir: filepath.Dir(path), shm: t.TempDir()}.describe(t)
			_, err := PutBack(t.Context(), checkpoint, PutBackOptions{OnlyMissing: true})
			if tt.says == "" {
				must(t, err)
			} else {
				checkRefusal(t, path, tt.says, err)
			}
			if diff := cmp.Diff(before, scene{dir: filepath.Dir(path), shm: t.TempDir()}.describe(t)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestWhatHasOtherNamesElsewhereIsNotChanged: whoever may make names for files there could lead root
// to another one, with as many names as the job's has.
func TestWhatHasOtherNamesElsewhereIsNotChanged(t *testing.T) {
	path := write(t, filepath.Join(tempDir(t), "file"), "content")
	must(t, os.Link(path, path+"-2"))
	checkpoint := save(t, startJob(t, jobFile(path, unix.O_RDWR)), Options{Elsewhere: true})
	write(t, path, "another")
	_, err := PutBack(t.Context(), checkpoint, PutBackOptions{})
	checkRefused(t, path, "DIR: it is not the file of the checkpoint, and has 2 names, not 1", err)
	must(t, os.Remove(path+"-2"))
	_, err = PutBack(t.Context(), checkpoint, PutBackOptions{})
	must(t, err)
	if got := read(t, path); got != "content" {
		t.Errorf("it holds %q", got)
	}
}
