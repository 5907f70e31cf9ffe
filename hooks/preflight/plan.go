package preflight

import (
	"context"
	"fmt"

	"cucriu/cudackpt"
	"cucriu/hooks/gpumap"
	"cucriu/hooks/image"
)

// PlanRestore plans where an image's GPUs go on this host. It fails if the host cannot take the
// image: another driver, a map that is not possible, or too little free memory. It changes
// nothing.
func (h Host) PlanRestore(ctx context.Context, driver *cudackpt.Driver, manifest image.Manifest) (gpumap.Plan, error) {
	if err := driver.Supports(cudackpt.FeatureCheckpoint); err != nil {
		return gpumap.Plan{}, err
	}
	version, err := driver.DriverVersion()
	if err != nil {
		return gpumap.Plan{}, err
	}
	if version != manifest.DriverVersion {
		return gpumap.Plan{}, &DriverVersionError{Image: manifest.DriverVersion, Host: version}
	}
	visible, err := driver.OwnGPUs()
	if err != nil {
		return gpumap.Plan{}, err
	}
	captured := make([][]cudackpt.GPU, len(manifest.Processes))
	for i, p := range manifest.Processes {
		captured[i] = p.GPUs
	}
	plan, err := gpumap.Make(gpumap.Union(captured...), visible, h.Map, h.Unmapped)
	if err != nil {
		return gpumap.Plan{}, err
	}
	need := make(MemoryNeed)
	for _, p := range manifest.Processes {
		pairs := plan.Pairs(gpumap.UUIDsOf(p.GPUs))
		if len(pairs) > 0 {
			if err := driver.Supports(cudackpt.FeatureGPUPairs); err != nil {
				return plan, err
			}
		}
		need.Add(p.MemoryBytes, pairs)
	}
	return plan, need.Require(ctx, driver)
}

// DriverVersionError says that an image was made with another driver than this host has.
type DriverVersionError struct {
	Image, Host string // "580.159.04"
}

// Error returns the meaning and the remedy.
func (e *DriverVersionError) Error() string { return e.Meaning() + ": " + e.Remedy() }

// Meaning returns the error without its remedy.
func (e *DriverVersionError) Meaning() string {
	return fmt.Sprintf("the image was made with driver %s and this host has %s", e.Image, e.Host)
}

// Remedy says what to do about it.
func (e *DriverVersionError) Remedy() string {
	return "restore it on a host with driver " + e.Image + ": the driver's own state is part of the image, so both must be the same version"
}
