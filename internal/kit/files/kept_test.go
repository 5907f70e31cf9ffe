package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestOnlyWhatWasKeptIsRemoved: the path is one that the job's user can change.
func TestOnlyWhatWasKeptIsRemoved(t *testing.T) {
	base := t.TempDir()
	file := func(elements ...string) string {
		path := filepath.Join(append([]string{base}, elements...)...)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("newer"), 0o600)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := func(to string, elements ...string) string {
		path := filepath.Join(append([]string{base}, elements...)...)
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	precious := file("else", "log.cucriu-20261122-041500")
	ordinary, partial := file("log"), file("log.cucriu-partial")
	viaLink := filepath.Join(link(filepath.Join(base, "else"), "way"), "log.cucriu-20261122-041500")
	isLink := link(precious, "link.cucriu-20261122-041500")
	folder := filepath.Dir(file("dir.cucriu-20261122-041500", "file"))
	for _, path := range []string{ordinary, partial, viaLink, isLink, folder, filepath.Join(base, "no.cucriu-20261122-041500"), "log.cucriu-20261122-041500"} {
		if _, err := FindKept(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("found %s: %v", path, err)
		}
		if err := RemoveKept(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("removed %s: %v", path, err)
		}
	}
	for _, path := range []string{precious, ordinary, partial, isLink, folder} {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
	if kept, err := FindKept(precious); err != nil || kept.Bytes != 5 {
		t.Errorf("%+v, %v", kept, err)
	}
	if err := RemoveKept(precious); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(precious); err == nil {
		t.Error("it is still there")
	}
}
