package inspect

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
)

// More GPU memory than any host has memory: what of it is 0 takes no room.
func TestRoomIsJudgedByWhatIsCopied(t *testing.T) {
	room := Room{remedy: "start it with less"}
	p := Process{MemoryBytes: map[cudackpt.UUID]uint64{{1}: 1 << 50}}
	findings, err := room.Judge([]Process{p})
	if err != nil || !strings.Contains(severities(findings), "staging-memory=error") || !strings.HasSuffix(findings[0].Remedy, "; or start it with less") {
		t.Errorf("%v (%v)", findings, err)
	}
	p.Spared = 1<<50 - 1<<20
	if findings, err = room.Judge([]Process{p}); err != nil || len(findings) > 0 {
		t.Errorf("although little of it is copied: %v (%v)", findings, err)
	}
}

// TestAFullDiskIsNamed by its path, though the directory is held by a descriptor.
func TestAFullDiskIsNamed(t *testing.T) {
	path := t.TempDir()
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	findings, err := Room{imageDir: fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), ordinary: 1 << 62}.Judge(nil)
	if err != nil {
		t.Fatal(err)
	}
	found := slices.ContainsFunc(findings, func(f preflight.Finding) bool {
		return strings.Contains(f.Message, "the file system of "+path+" has ") && strings.HasPrefix(f.Remedy, "free at least ")
	})
	if !found {
		t.Errorf("%+v", findings)
	}
}
