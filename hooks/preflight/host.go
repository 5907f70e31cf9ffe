package preflight

import (
	"time"

	"cucriu/cudackpt"
	"cucriu/hooks/gpumap"
)

// Host is the machine that the checks are about, as a configuration has it.
type Host struct {
	// Driver opens the driver.
	Driver func() (*cudackpt.Driver, error)
	// Map and Unmapped are the user's part of the GPU map: see [gpumap.Make].
	Map      []gpumap.Rule
	Unmapped gpumap.Policy
	// Timeout bounds what waits for the answer of a process.
	Timeout time.Duration
}

// CheckpointDriver opens the driver if it can checkpoint.
func (h Host) CheckpointDriver() (*cudackpt.Driver, error) {
	driver, err := h.Driver()
	if err != nil {
		return nil, err
	}
	if err := driver.Supports(cudackpt.FeatureCheckpoint); err != nil {
		return nil, err
	}
	return driver, nil
}
