package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"cucriu/internal/kit/inventory"
)

func bg() context.Context { return context.Background() }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return string(text)
}

// tempDir is a temporary directory by a path without links.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	return dir
}

// stopped is the truth about a job.
func stopped(t *testing.T, root int) *inventory.Tree {
	t.Helper()
	truth, err := inventory.Truth(root)
	must(t, err)
	return truth
}

// save saves a job's files, and returns the checkpoint's directory.
func save(t *testing.T, root int, o Options) string {
	t.Helper()
	dir := t.TempDir()
	must(t, Foresee(t.Context(), root, o))
	must(t, Save(t.Context(), stopped(t, root), dir, o))
	return dir
}

// savedBytes is the size of the content that a checkpoint holds.
func savedBytes(t *testing.T, checkpoint string) (sum int64) {
	t.Helper()
	l, err := readList(checkpoint)
	must(t, err)
	for _, f := range l.Files {
		sum += f.Content.length()
	}
	for _, tree := range l.Trees {
		sum += tree.bytes()
	}
	return sum
}

// usesBelow returns the uses of the files below a directory, as the list has them.
func usesBelow(t *testing.T, checkpoint, dir string) map[string]use {
	t.Helper()
	l, err := readList(checkpoint)
	must(t, err)
	uses := make(map[string]use)
	for _, f := range l.Files {
		for _, path := range f.Paths {
			if below, err := filepath.Rel(dir, string(path)); err == nil && !strings.HasPrefix(below, "..") {
				uses[below] = f.Use
			}
		}
	}
	return uses
}

func TestWhatIsSavedDependsOnHowAFileIsHeld(t *testing.T) {
	dir := tempDir(t)
	page := strings.Repeat("x", os.Getpagesize())
	at := func(base string) string { return filepath.Join(dir, base) }
	for _, base := range []string{
		"read", "written", "read and written", "appended", "read and appended", "appended and written", "appended and read",
		"path only", "shared", "shared read-only", "shared of a read-only file", "private", "name 1", "removed", "linked", "excepted", "child", "new\nline", "not\xffUTF-8", "not held",
	} {
		write(t, at(base), page)
	}
	must(t, os.Link(at("name 1"), at("name 2")))
	must(t, os.Link(at("linked"), at("other name of linked")))
	const rw, appending = unix.O_RDWR, unix.O_WRONLY | unix.O_APPEND
	root := startJob(
		t,
		order{Path: name(at("read"))}, order{Path: name(at("written")), Flags: unix.O_WRONLY}, order{Path: name(at("read and written")), Flags: rw},
		order{Path: name(at("appended")), Flags: appending}, order{Path: name(at("read and appended")), Flags: rw | unix.O_APPEND},
		order{Path: name(at("appended and written")), Flags: appending}, order{Path: name(at("appended and written")), Flags: unix.O_WRONLY, Child: true},
		order{Path: name(at("appended and read")), Flags: appending}, order{Path: name(at("appended and read"))},
		order{Path: name(at("path only")), Flags: unix.O_PATH},
		order{Path: name(at("shared")), Flags: rw, Map: unix.PROT_READ | unix.PROT_WRITE, Share: true, Close: true},
		order{Path: name(at("shared read-only")), Flags: rw, Map: unix.PROT_READ, Share: true, Close: true},
		order{Path: name(at("shared of a read-only file")), Map: unix.PROT_READ, Share: true, Close: true},
		order{Path: name(at("private")), Map: unix.PROT_READ | unix.PROT_WRITE, Close: true},
		order{Path: name(at("name 1")), Flags: unix.O_WRONLY}, order{Path: name(at("name 2"))},
		order{Path: name(at("removed")), Flags: rw, Then: thenUnlink}, order{Path: name(at("linked")), Flags: rw, Then: thenUnlink},
		order{Path: name(at("excepted")), Flags: unix.O_WRONLY},
		order{Path: name(at("child")), Flags: unix.O_WRONLY, Child: true},
		order{Path: name(at("new\nline")), Flags: unix.O_WRONLY}, order{Path: name(at("not\xffUTF-8")), Flags: unix.O_WRONLY},
		order{Path: "/dev/null", Flags: rw}, order{Path: "/proc/self/oom_score_adj", Flags: rw},
	)
	checkpoint := save(t, root, Options{Except: []string{at("excepted")}})
	want := map[string]use{
		"read": useRead, "written": useContent, "read and written": useContent,
		"appended": useAppend, "read and appended": useAppend, "appended and written": useContent, "appended and read": useAppend,
		"path only": useRead, "shared": useContent, "shared read-only": useContent,
		"shared of a read-only file": useMapped, "private": useMapped, "name 1": useContent, "name 2": useContent,
		"child": useContent, "new\nline": useContent, "not\xffUTF-8": useContent,
	}
	if diff := cmp.Diff(want, usesBelow(t, checkpoint, dir)); diff != "" {
		t.Error(diff)
	}
	if saved := savedBytes(t, checkpoint); saved != int64(9*len(page)) {
		t.Errorf("%d bytes were saved", saved)
	}
	l, err := readList(checkpoint)
	must(t, err)
	for _, f := range l.Files {
		for _, path := range f.Paths {
			if string(path) == "/dev/null" || strings.HasPrefix(string(path), "/proc/") {
				t.Errorf("%v is in the list", path)
			}
		}
		if shorter := f.Paths[0] == name(at("appended")); f.MayBeShorter != shorter {
			t.Errorf("%v may be shorter: %v", f.Paths[0], f.MayBeShorter)
		}
	}
}

func TestALimitIsRefusedByNameBeforeAnythingIsCopied(t *testing.T) {
	dir := tempDir(t)
	large := write(t, filepath.Join(dir, "large"), strings.Repeat("x", 3<<20))
	small := write(t, filepath.Join(dir, "small"), strings.Repeat("x", 1<<20))
	root := startJob(t, order{Path: name(large), Flags: unix.O_WRONLY}, order{Path: name(small), Flags: unix.O_WRONLY})
	want := fmt.Sprintf("the files that the job has open for writing hold 4.0 MiB, which is more than the limit of 2.0 MiB: the largest is "+
		"%s (3.0 MiB, written by process %d, files.test), then %s (1.0 MiB, written by process %d, files.test): start or resume the job with a larger --files-limit, or let it open the file for appending", large, root, small, root)
	o := Options{Limit: 2 << 20}
	checkpoint := t.TempDir()
	err := Save(t.Context(), stopped(t, root), checkpoint, o)
	for name, err := range map[string]error{"Foresee": Foresee(t.Context(), root, o), "Save": err} {
		if err == nil || strings.ReplaceAll(err.Error(), "exe)", "files.test)") != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	if entries, err := os.ReadDir(checkpoint); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
	must(t, Foresee(t.Context(), root, Options{Limit: 4 << 20}))
	err = Foresee(t.Context(), root, Options{Limit: 4 << 20, Shm: dir, TreeLimit: 2 << 20})
	if err == nil || !strings.Contains(err.Error(), "the job's own directories hold 4.0 MiB") {
		t.Errorf("%v", err)
	}
}

// TestHolesOfALargeFileCostNothing: a file of 1 TiB with little data in it.
func TestHolesOfALargeFileCostNothing(t *testing.T) {
	const large = 1 << 40
	dir := tempDir(t)
	path := filepath.Join(dir, "sparse")
	f, err := os.Create(path)
	must(t, err)
	must(t, f.Truncate(large))
	for _, at := range []int64{0, 1 << 30, large - 5} {
		_, err := f.WriteAt([]byte("hello"), at)
		must(t, err)
	}
	must(t, f.Close())
	root := startJob(t, order{Path: name(path), Flags: unix.O_RDWR})
	checkpoint := save(t, root, Options{})
	if saved := savedBytes(t, checkpoint); saved > 1<<20 {
		t.Errorf("%d bytes were saved", saved)
	}
	// It is changed, and then it is missing.
	for _, change := range []func(){
		func() {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			must(t, err)
			_, err = f.WriteAt([]byte("newer"), 1<<35)
			must(t, errors.Join(err, f.Close()))
		},
		func() { must(t, os.Remove(path)) },
	} {
		change()
		began := time.Now()
		changes, err := PutBack(t.Context(), checkpoint, PutBackOptions{})
		must(t, err)
		if len(changes) != 1 || time.Since(began) > time.Minute {
			t.Errorf("%v after %v", changes, time.Since(began))
		}
		f, err := os.Open(path)
		must(t, err)
		for at, want := range map[int64]string{0: "hello", 1 << 30: "hello", large - 5: "hello", 1 << 35: "\x00\x00\x00\x00\x00"} {
			got := make([]byte, 5)
			_, err := f.ReadAt(got, at)
			if must(t, err); string(got) != want {
				t.Errorf("%q at %d", got, at)
			}
		}
		parts, err := dataOf(f, 0, large)
		must(t, errors.Join(err, f.Close()))
		if (&content{Extents: parts}).length() > 1<<20 {
			t.Errorf("it has lost its holes: %v", parts)
		}
	}
}

// TestSyncTakesTheJobsFilesAsTheyAreNow: the job runs on when it is called.
func TestSyncTakesTheJobsFilesAsTheyAreNow(t *testing.T) {
	dir := tempDir(t)
	var orders []order
	for _, base := range []string{"log", "removed", "replaced", "a link now"} {
		orders = append(orders, jobFile(write(t, filepath.Join(dir, base), "line 1\n"), unix.O_WRONLY|unix.O_APPEND))
	}
	orders = append(orders, jobFile(write(t, filepath.Join(dir, "read"), "read"), 0))
	checkpoint := save(t, startJob(t, orders...), Options{})
	must(t, errors.Join(os.Remove(filepath.Join(dir, "removed")), os.Remove(filepath.Join(dir, "replaced")), os.Remove(filepath.Join(dir, "a link now"))))
	write(t, filepath.Join(dir, "replaced"), "another file")
	must(t, os.Symlink("log", filepath.Join(dir, "a link now")))
	must(t, Sync(t.Context(), checkpoint))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Sync(ctx, checkpoint); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	must(t, os.Remove(filepath.Join(checkpoint, listName)))
	if err := Sync(t.Context(), checkpoint); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
