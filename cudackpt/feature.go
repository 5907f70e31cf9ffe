package cudackpt

import (
	"errors"
	"fmt"

	"cucriu/internal/kit/drivers"
	"cucriu/internal/kit/fault"
)

// Version is the CUDA version that a driver implements, as cuDriverGetVersion returns it:
// 1000*major + 10*minor, so 13000 for 13.0. Versions compare as integers.
type Version int

// Major returns the major version: 13 for 13.0.
func (v Version) Major() int { return int(v) / 1000 }

// Minor returns the minor version: 8 for 12.8.
func (v Version) Minor() int { return int(v) % 1000 / 10 }

// String returns the version in the form "13.0".
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major(), v.Minor()) }

// Feature is something that only newer drivers can do.
type Feature string

const (
	// FeatureCheckpoint is the checkpoint API as a whole: driver 570, CUDA 12.8.
	FeatureCheckpoint Feature = "the checkpoint API"
	// FeatureGPUPairs is a restore onto GPUs other than the captured ones: driver 580, CUDA
	// 13.0.
	FeatureGPUPairs Feature = "GPU pairs at restore"
)

// Supports returns nil if the driver has the feature, and otherwise an [*UnsupportedError]. Of GPU pairs the version
// of the library decides, not that of the kernel module: the library reads the arguments, and a
// cuda-compat library may be newer than the module.
func (d *Driver) Supports(feature Feature) error {
	supported, minimum := d.api.complete(), drivers.Checkpoint.Driver
	switch feature {
	case FeatureCheckpoint:
	case FeatureGPUPairs:
		supported, minimum = supported && d.version >= Version(drivers.GPUPairs.CUDA), drivers.GPUPairs.Driver
	default:
		return fmt.Errorf("%w: unknown feature %q", ErrInvalidArgument, string(feature))
	}
	if supported {
		return nil
	}
	driver, err := d.DriverVersion()
	found := fmt.Sprintf("driver %s with CUDA %v", driver, d.version)
	if err != nil { // the kernel module cannot be asked; the library's version says enough
		driver, found = "", fmt.Sprintf("CUDA %v", d.version)
	}
	return &UnsupportedError{
		explained: *fault.Because(ErrNotSupported, fmt.Sprintf("%s needs NVIDIA driver %s or newer, this is %s", feature, minimum, found), "update the driver on this host"),
		Feature:   feature, MinimumDriver: minimum, Driver: driver, CUDA: d.version,
	}
}

// ErrNotSupported is what errors.Is finds in every [*UnsupportedError].
var ErrNotSupported = errors.New("not supported by this driver")

// UnsupportedError says that the driver is too old for a feature.
type UnsupportedError struct {
	explained
	Feature       Feature
	MinimumDriver string  // the first driver version with the feature, "580"
	Driver        string  // the version of the installed driver, "570.86.15"; "" if the kernel module did not say
	CUDA          Version // the CUDA version of the library that was loaded
}
