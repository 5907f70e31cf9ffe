package store

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/fault"
)

// TestADirectoryThatOthersCanReplaceIsRefused: whoever can rename a directory above it can have
// root restore what they like.
func TestADirectoryThatOthersCanReplaceIsRefused(t *testing.T) {
	const somebody = 1000
	for name, test := range map[string]struct {
		make    func(t *testing.T, above string) (dir string)
		refused bool
	}{
		"root's alone": {make: func(t *testing.T, above string) string { return filepath.Join(above, "a", "job") }},
		"below somebody's directory": {refused: true, make: func(t *testing.T, above string) string {
			must(t, os.Chown(above, somebody, somebody))
			return filepath.Join(above, "job")
		}},
		"far below somebody's directory": {refused: true, make: func(t *testing.T, above string) string {
			must(t, os.Mkdir(filepath.Join(above, "a"), 0o755))
			must(t, os.Chown(above, somebody, somebody))
			return filepath.Join(above, "a", "b", "job")
		}},
		"below one that a group can write": {refused: true, make: func(t *testing.T, above string) string {
			must(t, os.Chmod(above, 0o775))
			return filepath.Join(above, "job")
		}},
		"below one that all can write": {refused: true, make: func(t *testing.T, above string) string {
			must(t, os.Chmod(above, 0o777))
			return filepath.Join(above, "job")
		}},
		"below a sticky one of root's, like /tmp": {make: func(t *testing.T, above string) string {
			must(t, os.Chmod(above, 0o777|os.ModeSticky))
			return filepath.Join(above, "job")
		}},
		"below a sticky one of somebody's": {refused: true, make: func(t *testing.T, above string) string {
			must(t, os.Chmod(above, 0o777|os.ModeSticky))
			must(t, os.Chown(above, somebody, somebody))
			return filepath.Join(above, "job")
		}},
		"through root's link": {make: func(t *testing.T, above string) string {
			must(t, os.Symlink(t.TempDir(), filepath.Join(above, "link")))
			return filepath.Join(above, "link", "job")
		}},
		"through somebody's link": {refused: true, make: func(t *testing.T, above string) string {
			must(t, os.Symlink(t.TempDir(), filepath.Join(above, "link")))
			must(t, os.Lchown(filepath.Join(above, "link"), somebody, somebody))
			return filepath.Join(above, "link", "job")
		}},
		"through root's link to a link in somebody's directory": {refused: true, make: func(t *testing.T, above string) string {
			theirs := filepath.Join(above, "theirs")
			must(t, os.Mkdir(theirs, 0o755))
			must(t, os.Chown(theirs, somebody, somebody))
			must(t, os.Symlink(t.TempDir(), filepath.Join(theirs, "second")))
			must(t, os.Symlink("theirs/./second", filepath.Join(above, "first")))
			return filepath.Join(above, "first", "job")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := test.make(t, t.TempDir())
			s, err := Open(dir, OpenOptions{})
			if !test.refused {
				must(t, err)
				must(t, s.Close())
				return
			}
			if !errors.As(err, new(*fault.Explained)) {
				t.Fatalf("%v, want its remedy", err)
			}
			if _, err := os.Lstat(dir); err == nil {
				t.Error("it was made all the same")
			}
		})
	}
}

func TestLinksThatLeadInACircleEnd(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Symlink("b", filepath.Join(dir, "a")))
	must(t, os.Symlink("a", filepath.Join(dir, "b")))
	if err := durable.CheckPath("job directory", filepath.Join(dir, "a", "job"), 1); err == nil {
		t.Error("accepted")
	}
}
