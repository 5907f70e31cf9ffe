package prepare

import (
	"strings"
	"testing"

	"cucriu/hooks/preflight"
)

// TestWhatTheDestinationRefusesNamesIt: the user reads it at the source, where "this host" is another.
func TestWhatTheDestinationRefusesNamesIt(t *testing.T) {
	found := func(host string) *Judgement {
		return &Judgement{Host: host, Findings: preflight.Findings{preflight.New(preflight.FindingDriverMissing, "no libcuda", "")}}
	}
	there := "driver-missing: on gpu-b: no libcuda: install"
	if err := found("gpu-b").Err(); err == nil || !strings.Contains(err.Error(), there) {
		t.Errorf("a second judgement: %v", err)
	}
	err := Report{Source: found("gpu-a"), Destination: found("gpu-b")}.Err()
	if err == nil || !strings.Contains(err.Error(), there) || !strings.Contains(err.Error(), "driver-missing: no libcuda: install") {
		t.Errorf("%v", err)
	}
}

// TestACriuIsNamedToTheDestination: --criu names that of the source.
func TestACriuIsNamedToTheDestination(t *testing.T) {
	findings, err := machineFindings(t.Context(), hookFor(t), new(Job), "/nosuch")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		if f.Name == preflight.FindingCriuMissing && strings.HasSuffix(f.Remedy, `path with --remote-cucriu "env CUCRIU_CRIU=PATH cucriu"`) {
			return
		}
	}
	t.Errorf("%v", findings)
}
