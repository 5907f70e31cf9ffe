package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cucriu/internal/kit/fault"
)

func TestADirectoryThatOthersCanReachIsRefused(t *testing.T) {
	for name, make := range map[string]func(dir string) error{
		"of somebody else": func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 1000, 0)) },
		"open to a group":  func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o710)) },
		"open to all":      func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o755)) },
		"a symbolic link":  func(dir string) error { return errors.Join(os.Mkdir(dir+".real", 0o700), os.Symlink(dir+".real", dir)) },
		"a file":           func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "job")
			must(t, make(dir))
			var refused *fault.Explained
			if _, err := Open(dir, OpenOptions{}); !errors.As(err, &refused) {
				t.Errorf("open: %v", err)
			}
			if _, err := View(dir); !errors.As(err, &refused) {
				t.Errorf("view: %v", err)
			}
		})
	}
	if _, err := View(filepath.Join(t.TempDir(), "nothing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("view of nothing: %v", err)
	}
}

func TestAStoreHasOneOwnerAtATime(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "job")
	s := openStore(t, dir)
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	for _, takeover := range []bool{false, true} { // a process of this host is ended, not robbed
		_, err := Open(dir, OpenOptions{Takeover: takeover})
		if !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), s.owner.Ident.String()) {
			t.Errorf("a second owner: %v", err)
		}
	}
	must(t, s.Fenced())
	must(t, s.Close())
	must(t, s.Close())
	if _, err := s.Prune(t.Context(), Policy{}); !errors.Is(err, ErrReadOnly) {
		t.Errorf("prune after the end: %v", err)
	}
	s = openStore(t, dir)
	if s.owner.Generation != 2 {
		t.Errorf("the second owner has generation %d", s.owner.Generation)
	}
}

// as makes the store look as if another owner had left it.
func as(t testing.TB, s *Store, change func(*Owner)) {
	t.Helper()
	o, err := s.Owner()
	must(t, err)
	change(&o)
	must(t, ownerKind.Write(s.dir, o))
}

func TestWhatAnEarlierOwnerHasLeftIsTakenOverIfItIsOfThisHost(t *testing.T) {
	anotherBoot := func(o *Owner) { o.BootID = "another"; o.Released = false }
	for name, c := range map[string]struct {
		left   func(*Owner)
		silent bool
	}{
		"killed on this boot":               {func(o *Owner) { o.Released = false }, true},
		"killed on this boot, as a new pid": {func(o *Owner) { o.Released = false; o.PID = 1 }, true},
		"killed by a reboot":                {anotherBoot, true},
		"released by another host":          {func(o *Owner) { anotherBoot(o); o.Host = "other"; o.Released = true }, true},
		"another host":                      {func(o *Owner) { anotherBoot(o); o.Host = "other" }, false},
		"a host with the same name":         {func(o *Owner) { anotherBoot(o); o.Machine = "other" }, false},
		"a host without an id":              {func(o *Owner) { anotherBoot(o); o.Machine = "" }, false},
		"nobody knows":                      {func(o *Owner) { o.Token = "" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := quickDir(t)
			s := openStore(t, dir)
			if s.owner.Machine == "" {
				t.Fatal("this host has no id of its machine")
			}
			must(t, s.Close())
			as(t, s, c.left)
			before := content(t, dir)
			next, err := Open(dir, OpenOptions{})
			if c.silent {
				must(t, err)
				if next.owner.Generation != 2 {
					t.Errorf("generation %d", next.owner.Generation)
				}
				must(t, next.Close())
				return
			}
			if !errors.As(err, new(*fault.Explained)) || !strings.Contains(err.Error(), "--takeover") {
				t.Fatalf("error %v", err)
			}
			if o, _ := s.Owner(); name != "nobody knows" && !strings.Contains(err.Error(), o.Host+", since "+o.Since.Format("2006-01-02T")) {
				t.Errorf("it does not say who and when: %v", err)
			}
			if after := content(t, dir); after[ownerName] != before[ownerName] {
				t.Error("a refused owner has changed the record")
			}
			next, err = Open(dir, OpenOptions{Takeover: true})
			must(t, err)
			if next.owner.Generation < 2 {
				t.Errorf("generation %d", next.owner.Generation)
			}
			must(t, next.Close())
		})
	}
}

// TestAnOwnerThatWasRobbedChangesNothing takes the store from an owner that has the lock, as
// one of another host has it over NFS.
func TestAnOwnerThatWasRobbedChangesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "job")
	old := openStore(t, dir)
	c := publish(t, old, 1, newMemory(1, 2))
	second := publish(t, old, 2, newMemory(2, 2))
	must(t, old.Verify(t.Context(), second, 1, nil))
	as(t, old, func(o *Owner) { o.Host, o.BootID = "other", "other" })
	_, err := Open(dir, OpenOptions{})
	if !errors.As(err, new(*fault.Explained)) || !strings.Contains(err.Error(), "on host other") {
		t.Fatalf("a lock of another host: %v", err)
	}
	must(t, old.Fenced())

	next, err := Open(dir, OpenOptions{Takeover: true})
	must(t, err)
	defer next.Close()
	must(t, next.Fenced())
	before := content(t, dir)
	staged := stageImage(t, filepath.Join(t.TempDir(), "image"), 3, newMemory(3, 2))
	for what, change := range map[string]func() error{
		"look":      old.Fenced,
		"publish":   func() error { _, err := old.Publish(t.Context(), staged, goodInfo(t)); return err },
		"prune":     func() error { _, err := old.Prune(t.Context(), Policy{Keep: 1}); return err },
		"pin":       func() error { return old.Pin(c.Name, true) },
		"remove":    func() error { return old.Remove(c.Name) },
		"leftovers": func() error { _, err := old.RemoveLeftovers(); return err },
		"stage":     func() error { _, err := old.StageDir("", nil); return err },
	} {
		t.Run(what, func(t *testing.T) {
			if err := change(); !errors.Is(err, ErrFenced) {
				t.Errorf("error %v, want ErrFenced", err)
			}
		})
	}
	must(t, old.Verify(t.Context(), c, 1, nil))
	must(t, old.Close())
	after := content(t, dir)
	if len(after) != len(before) || after[ownerName] != before[ownerName] {
		t.Errorf("changed: %v, and was %v", sortedNames(after), sortedNames(before))
	}
	must(t, next.Fenced())
	if _, err := Open(dir, OpenOptions{}); !errors.Is(err, ErrBusy) {
		t.Errorf("the lock that was taken does not hold: %v", err)
	}
	publish(t, next, 4, newMemory(4, 2))
}

// TestALockThatWasReplacedDoesNotCount: who has the file of before has nothing.
func TestALockThatWasReplacedDoesNotCount(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "job")
	s := openStore(t, dir)
	if !isCurrent(s.lock) {
		t.Error("the lock that was just taken does not count")
	}
	must(t, os.Rename(s.path(lockName), s.path("away")))
	if isCurrent(s.lock) {
		t.Error("a lock without a name counts")
	}
	must(t, os.WriteFile(s.path(lockName), nil, 0o600))
	if isCurrent(s.lock) {
		t.Error("a lock counts whose name another file has")
	}
}

// TestAPublicationIsFencedAtItsEnd takes the store over while a checkpoint is being copied.
func TestAPublicationIsFencedAtItsEnd(t *testing.T) {
	s := openStore(t, quickDir(t))
	staged := stageImage(t, filepath.Join(t.TempDir(), "image"), 1, newMemory(1, 2))
	s.interrupt = func(step string) error {
		if step == stepRename {
			as(t, s, func(o *Owner) { o.Generation++ })
		}
		return nil
	}
	if _, err := s.Publish(t.Context(), staged, goodInfo(t)); !errors.Is(err, ErrFenced) {
		t.Fatalf("error %v", err)
	}
	wantNothingLeft(t, s)
}

func TestAViewChangesNothingButPins(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "job")
	s := openStore(t, dir)
	c := publish(t, s, 1, newMemory(1, 2))
	v, err := View(dir)
	must(t, err)
	wantWhole(t, v, c.Name)
	must(t, v.Pin(c.Name, true))
	if all := list(t, s); !all[0].Pinned || !all[0].Verified {
		t.Errorf("listed as %+v", all)
	}
	for what, change := range map[string]func() error{
		"publish":   func() error { _, err := v.Publish(t.Context(), c.Dir, goodInfo(t)); return err },
		"prune":     func() error { _, err := v.Prune(t.Context(), Policy{Keep: 1}); return err },
		"remove":    func() error { return v.Remove(c.Name) },
		"leftovers": func() error { _, err := v.RemoveLeftovers(); return err },
	} {
		if err := change(); !errors.Is(err, ErrReadOnly) {
			t.Errorf("%s: %v", what, err)
		}
	}
	must(t, v.Close())
	must(t, s.Fenced())
}
