package jobs

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestATemporaryDirectoryIsFramed: what leads to the job's own is made alike, and all else is to be mounted.
func TestATemporaryDirectoryIsFramed(t *testing.T) {
	dir, to := t.TempDir(), filepath.Join(t.TempDir(), "to")
	at := func(names ...string) string { return filepath.Join(append([]string{dir}, names...)...) }
	for _, name := range []string{"own/in", "run/a/deep", "run/b", "other/x"} {
		if err := os.MkdirAll(at(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"file", "run/file"} {
		if err := os.WriteFile(at(name), []byte("of the host"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	err := os.Symlink("other", at("link"))
	if err == nil {
		err = unix.Mkfifo(at("run", "fifo"), 0o666)
	}
	if err == nil {
		err = os.Chmod(at("run"), 0o777|os.ModeSticky)
	}
	if err != nil {
		t.Fatal(err)
	}
	in := func(path string) string { return filepath.Join(to, strings.TrimPrefix(path, dir)) }
	kept, err := frame(dir, []string{at("own"), at("run", "a", "deep"), at("gone", "part")}, in)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(kept)
	want := []string{at("file"), at("other"), at("run", "b"), at("run", "fifo"), at("run", "file")}
	if !reflect.DeepEqual(kept, want) {
		t.Errorf("the host's are\n%q, want\n%q", kept, want)
	}
	for _, path := range kept {
		was, _ := os.Lstat(path)
		if is, err := os.Lstat(in(path)); err != nil || is.IsDir() != was.IsDir() || !is.IsDir() && is.Size() > 0 {
			t.Errorf("%s cannot be mounted: %v, %v", path, is, err)
		}
	}
	if target, err := os.Readlink(in(at("link"))); target != "other" {
		t.Errorf("the link leads to %q: %v", target, err)
	}
	if info, err := os.Stat(in(at("run"))); err != nil || info.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("%v, %v", info, err)
	}
	for _, path := range []string{at("own"), at("run", "a", "deep")} {
		if _, err := os.Lstat(in(path)); err == nil {
			t.Errorf("%s is there, and is to be a copy", path)
		}
	}
}

// TestWhereTheHostHasAFile of a job that has a temporary directory of its own.
func TestWhereTheHostHasAFile(t *testing.T) {
	from := &origin{
		Dir: "/tmp/a", Private: []string{"/srv/out", "/tmp", "/tmp/kept/out"}, Parts: []string{"/tmp/own", "/tmp/x/own"},
		Kept: []string{"/tmp/kept", "/tmp/x/kept"},
	}
	r := record{Dir: "/tmp/b", Image: from}
	for seen, want := range map[string]string{
		"/srv/out/f":      "/tmp/b/private/0/f",
		"/tmp/own/f":      "/tmp/b/private/1/own/f",
		"/tmp/new":        "/tmp/b/private/1/new",
		"/tmp/x/new":      "/tmp/b/private/1/x/new",
		"/tmp/kept/f":     "/tmp/kept/f",
		"/tmp/x/kept":     "/tmp/x/kept",
		"/tmp/kept/out/f": "/tmp/b/private/2/f",
		"/home/f":         "/home/f",
	} {
		if got := r.hostPath(seen); got != want {
			t.Errorf("%s is %s on the host, want %s", seen, got, want)
		}
	}
	want := []string{"/srv/out", "/tmp/kept/out", "/tmp/own", "/tmp/x/own"}
	if got := from.copies(); !reflect.DeepEqual(got, want) {
		t.Errorf("copies are %q, want %q", got, want)
	}
}

// TestAPrivateDirectoryIsAPartOfTheTemporaryOneAroundIt, of the topmost.
func TestAPrivateDirectoryIsAPartOfTheTemporaryOneAroundIt(t *testing.T) {
	top := t.TempDir()
	inner := filepath.Join(top, "plain", "tmp", "work")
	if err := os.MkdirAll(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(inner), 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	want := filepath.Dir(inner)
	if above := temporary(top); above != "" { // the tests' own
		want = above
	}
	private, parts := keepApart([]string{"/", inner, inner + "2"})
	if !reflect.DeepEqual(private, []string{"/", want}) || !reflect.DeepEqual(parts, []string{inner, inner + "2"}) {
		t.Errorf("private %q, with parts %q; want %s", private, parts, want)
	}
	private, parts = keepApart([]string{want, inner})
	if !reflect.DeepEqual(private, []string{want, inner}) || parts != nil {
		t.Errorf("private %q, with parts %q, although that is private already", private, parts)
	}
}
