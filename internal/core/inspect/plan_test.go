package inspect

import (
	"errors"
	"fmt"
	"testing"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
	"cucriu/internal/core/gpumap"
	"cucriu/internal/kit/fault"
)

func TestAPlanThatFailsIsCalledByItsCause(t *testing.T) {
	for want, err := range map[string]error{
		preflight.FindingDriverVersion: &DriverVersionError{fault.New("another driver", "use that one"), "580", "590"},
		preflight.FindingGPUMap:        &gpumap.MapError{Cause: "no GPU", Remedy: "name one"},
		preflight.FindingGPUMemory:     &memoryError{Explained: fault.New("too little", "free some")},
		preflight.FindingDriverOld:     fmt.Errorf("pairs: %w", cudackpt.ErrNotSupported),
		preflight.FindingDriverMissing: errors.New("cuInit: CUDA_ERROR_SYSTEM_NOT_READY"),
	} {
		if got := PlanFinding(fmt.Errorf("plan: %w", err)); got.Name != want {
			t.Errorf("%v is told as %s, want %s", err, got.Name, want)
		}
	}
}
