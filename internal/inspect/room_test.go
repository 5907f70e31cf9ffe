package inspect

import (
	"strings"
	"testing"

	"cucriu/cudackpt"
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
