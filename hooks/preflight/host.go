package preflight

import (
	"time"

	"cucriu/cudackpt"
	"cucriu/hooks/gpumap"
)

// Host is the machine that the checks are about, as the user has configured it.
type Host struct {
	// Driver opens the driver.
	Driver func() (*cudackpt.Driver, error)
	// Map and Unmapped are the user's part of the GPU map: see [gpumap.Make].
	Map      []gpumap.Rule
	Unmapped gpumap.Policy
	// Criu is the path of the criu that is to dump; empty if that is not known.
	Criu string
	// RunDir is the run directory, where the result of a calibration is kept.
	RunDir string
	// Timeout limits how long a check waits for a process to answer.
	Timeout time.Duration
}

// CheckpointDriver opens the driver, and fails if the driver cannot checkpoint.
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
