package files

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// scribble changes a file at a few places.
func scribble(t *rapid.T, f *os.File, label string) {
	for range rapid.IntRange(0, 4).Draw(t, label) {
		at := rapid.Int64Range(0, 300<<10).Draw(t, "at")
		data := bytes.Repeat([]byte{rapid.SampledFrom([]byte("\x00abc")).Draw(t, "byte")}, rapid.IntRange(1, 100<<10).Draw(t, "length"))
		if rapid.Bool().Draw(t, "truncate") {
			if err := f.Truncate(at); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := f.WriteAt(data, at); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAnyContentComesBackAndAnyNewerOneIsKept: whatever was in the file, and whatever has
// become of it, twice.
func TestAnyContentComesBackAndAnyNewerOneIsKept(t *testing.T) {
	dir := tempDir(t)
	path := write(t, filepath.Join(dir, "state"), "")
	root := startJob(t, jobFile(path, unix.O_RDWR))
	checkpoints := t.TempDir()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	rapid.Check(t, func(r *rapid.T) {
		kept, _ := filepath.Glob(path + asideInfix + "*")
		for _, old := range kept {
			must(t, os.Remove(old))
		}
		must(t, f.Truncate(0))
		scribble(r, f, "writes before")
		checkpoint, err := os.MkdirTemp(checkpoints, "")
		must(t, err)
		err = Save(t.Context(), stopped(t, root), checkpoint, Options{})
		must(t, err)
		then := read(t, path)
		for range 2 {
			scribble(r, f, "writes after")
			newer := read(t, path)
			_, err := PutBack(t.Context(), checkpoint, PutBackOptions{})
			must(t, err)
			if read(t, path) != then {
				r.Fatal("the content is not that of the checkpoint")
			}
			if newer != then && !isKept(t, path, newer) {
				r.Fatal("the newer content is lost")
			}
		}
		must(t, os.RemoveAll(checkpoint))
	})
}

// isKept reports whether a newer content is beside the file.
func isKept(t *testing.T, path, newer string) bool {
	t.Helper()
	kept, err := filepath.Glob(path + asideInfix + "*")
	must(t, err)
	for _, other := range kept {
		if read(t, other) == newer {
			return true
		}
	}
	return false
}
