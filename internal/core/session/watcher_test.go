package session

import (
	"os"
	"path/filepath"
	"testing"
)

// TestTheWatcherBesideThisProgramComesFirst: root runs it, and PATH may be anybody's.
func TestTheWatcherBesideThisProgramComesFirst(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	beside, other := filepath.Join(filepath.Dir(self), "cucriu-hook"), filepath.Join(t.TempDir(), "cucriu-hook")
	for _, path := range []string{beside, other} {
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	defer os.Remove(beside)
	t.Setenv("PATH", filepath.Dir(other))
	if found, err := FindWatcher(); err != nil || found[0] != beside {
		t.Errorf("%q, %v, want %q", found, err, beside)
	}
}
