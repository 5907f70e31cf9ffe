package gpumap

import (
	"errors"
	"fmt"
	"strings"

	"cucriu/cudackpt"
)

// The reasons for which there may be no map. errors.Is finds them in the
// errors of [Make].
var (
	ErrInvalidSet    = errors.New("invalid list of GPUs")
	ErrInvalidRule   = errors.New("invalid rule")
	ErrTooFew        = errors.New("fewer GPUs are visible than were captured")
	ErrConflict      = errors.New("two rules contradict each other")
	ErrNotVisible    = errors.New("the destination of a rule is not visible")
	ErrModelMismatch = errors.New("a rule pairs GPUs of different models")
	ErrUnmapped      = errors.New("no rule names a captured GPU")
	ErrNoSameModel   = errors.New("no GPU of the same model is free")
)

// MapError says why there is no map, and what to do about it.
type MapError struct {
	Kind          error // one of this package's Err values
	Cause, Remedy string
}

// Error returns the cause and the remedy.
func (e *MapError) Error() string { return "GPU map: " + e.Cause + "; " + e.Remedy }

// Unwrap returns the Kind.
func (e *MapError) Unwrap() error { return e.Kind }

func refuse(kind error, remedy, cause string, arguments ...any) error {
	return &MapError{Kind: kind, Cause: fmt.Sprintf(cause, arguments...), Remedy: remedy}
}

// describe names a GPU so that a person can find it in nvidia-smi -L and in lspci.
func describe(gpu cudackpt.GPU) string {
	model, pci := gpu.Model, gpu.PCIBusID
	if model == "" {
		model = "model unknown"
	}
	if pci == "" {
		pci = "PCI address unknown"
	}
	return gpu.UUID.String() + " (" + model + ", " + pci + ")"
}

func describeAll(gpus []cudackpt.GPU) string {
	if len(gpus) == 0 {
		return "none"
	}
	names := make([]string, len(gpus))
	for i, gpu := range gpus {
		names[i] = describe(gpu)
	}
	return strings.Join(names, ", ")
}
