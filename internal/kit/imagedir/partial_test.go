package imagedir

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func newPartial(t *testing.T) (p *Partial, parent string) {
	t.Helper()
	parent = t.TempDir()
	p, err := NewPartial(filepath.Join(parent, "images"), func(string) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p, parent
}

func isEmpty(t *testing.T, dir string) {
	t.Helper()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%s: %v, %v", dir, left, err)
	}
}

// TestAPartialDirectoryIsWhatWasMade: somebody else puts a link to another directory in its place.
func TestAPartialDirectoryIsWhatWasMade(t *testing.T) {
	p, parent := newPartial(t)
	victim, moved := t.TempDir(), filepath.Join(parent, "moved")
	if err := errors.Join(os.Rename(p.Path(), moved), os.Symlink(victim, p.Path())); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.Dir(), "pages"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	isEmpty(t, victim)
	if _, err := os.Stat(filepath.Join(moved, "pages")); err != nil {
		t.Error(err)
	}
	if err := p.Publish(false); err == nil || !strings.Contains(err.Error(), "was replaced") {
		t.Errorf("publish: %v", err)
	}
	if err := p.Remove(); err == nil {
		t.Error("it was removed by a name that is another's")
	}
	isEmpty(t, moved)
}

// TestAnotherDirectoryIsNotTakenForTheNew: it is another user's, or holds something.
func TestAnotherDirectoryIsNotTakenForTheNew(t *testing.T) {
	for name, change := range map[string]func(dir string) error{
		"another user's": func(dir string) error { return os.Chown(dir, 1000, 1000) },
		"another image":  func(dir string) error { return os.WriteFile(filepath.Join(dir, "inventory.img"), nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := newPartial(t)
			if err := change(p.Dir()); err != nil {
				t.Fatal(err)
			}
			if err := p.requireOurs(); err == nil || !strings.Contains(err.Error(), "was replaced") {
				t.Errorf("accepted: %v", err)
			}
		})
	}
}

func TestAPublishedImageHasItsName(t *testing.T) {
	p, parent := newPartial(t)
	images := filepath.Join(parent, "images")
	if err := errors.Join(os.WriteFile(filepath.Join(p.Dir(), "a"), nil, 0o600), os.Mkdir(images, 0o755), p.Publish(false)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{images, p.Dir()} {
		if _, err := os.Stat(filepath.Join(dir, "a")); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(p.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the partial directory is still there: %v", err)
	}
}

// TestWhatAKilledDumpLeftIsRemoved by the next one into that directory, even if it has the same pid, as in a container.
func TestWhatAKilledDumpLeftIsRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images")
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{gone.Process.Pid, os.Getpid()} {
		left := filepath.Join(dir+partialInfix+strconv.Itoa(pid), "stale")
		if err := os.MkdirAll(left, 0o700); err != nil {
			t.Fatal(err)
		}
		p, err := NewPartial(dir, func(string) bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("process %d: %v", pid, err)
		}
		if _, err := NewPartial(dir, func(string) bool { return false }); err == nil || !strings.Contains(err.Error(), "another dump into") {
			t.Errorf("beside one that is at work: %v", err)
		}
		if err := p.Remove(); err != nil {
			t.Fatal(err)
		}
		p.Close()
	}
}

// TestAnImageHasItsNameOnlyOnceItIsFinished: a directory cannot get a checksum.
func TestAnImageHasItsNameOnlyOnceItIsFinished(t *testing.T) {
	p, parent := newPartial(t)
	if err := os.Mkdir(filepath.Join(p.Dir(), "pages-1.img"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(true); err == nil {
		t.Error("published without its checksums")
	}
	if _, err := os.Lstat(filepath.Join(parent, "images")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it has its name: %v", err)
	}
}

// TestADumpAtWorkIsKnown, and a link is named: an image directory is replaced by a rename.
func TestADumpAtWorkIsKnown(t *testing.T) {
	p, parent := newPartial(t)
	if dir := filepath.Join(parent, "images"); !IsBeingMade(dir) || IsBeingMade(dir+"2") {
		t.Errorf("%s: at work: %v; %s: %v", dir, IsBeingMade(dir), dir+"2", IsBeingMade(dir+"2"))
	}
	p.Close()
	if IsBeingMade(filepath.Join(parent, "images")) {
		t.Error("the leftover of a killed dump was taken for one")
	}
	for link, target := range map[string]string{"dangling": filepath.Join(parent, "real"), "whole": parent} {
		if err := os.Symlink(target, filepath.Join(parent, link)); err != nil {
			t.Fatal(err)
		}
		want := "is a symbolic link to " + target + ": name that"
		if err := CheckVacant(filepath.Join(parent, link)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestANameWithoutRoomForThePartialOne is refused with how long it may be, and one of that length works.
func TestANameWithoutRoomForThePartialOne(t *testing.T) {
	parent := t.TempDir()
	_, err := NewPartial(filepath.Join(parent, strings.Repeat("y", 250)), func(string) bool { return false })
	if err == nil || !strings.Contains(err.Error(), "has 250 bytes, and may have 239, because .partial-PID is appended") {
		t.Errorf("got %v", err)
	}
	p, err := NewPartial(filepath.Join(parent, strings.Repeat("y", 239)), func(string) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
}
