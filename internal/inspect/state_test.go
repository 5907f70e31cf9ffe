package inspect

import (
	"strings"
	"testing"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
)

// TestAStateIsMendedByWhatItsRemedySays: recover mends none of them, because no session holds the
// process, and resume cannot mend what the driver has given up.
func TestAStateIsMendedByWhatItsRemedySays(t *testing.T) {
	for state, says := range map[cudackpt.State]string{
		cudackpt.StateLocked:        "cucriu unlock -p 42 ",
		cudackpt.StateCheckpointed:  "cucriu resume -p 42 --force",
		cudackpt.StateFailed:        "end it, and restore it from an image",
		cudackpt.StateCheckpointing: "wait until that is over",
		cudackpt.StateRestoring:     "wait until that is over",
	} {
		t.Run(state.String(), func(t *testing.T) {
			p := &Process{Name: "a"}
			p.PID = 42
			findings := StateFindings(p, state)
			if len(findings) != 1 || findings[0].Severity != preflight.SeverityError || !strings.Contains(findings[0].Message, state.String()) {
				t.Fatalf("%+v", findings)
			}
			remedy := findings[0].Remedy
			if !strings.Contains(remedy, says) || strings.Contains(remedy, "recover") || state == cudackpt.StateFailed && strings.Contains(remedy, "cucriu") {
				t.Errorf("the remedy is %q", remedy)
			}
		})
	}
	if findings := StateFindings(&Process{}, cudackpt.StateRunning); len(findings) > 0 {
		t.Errorf("a process that runs: %+v", findings)
	}
}
