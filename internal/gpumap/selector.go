package gpumap

import (
	"errors"
	"fmt"

	"cucriu/cudackpt"
)

// Selector names one GPU of an ordered set. Exactly one field must be set.
type Selector struct {
	UUID  *cudackpt.UUID `json:"uuid,omitempty"`
	PCI   string         `json:"pci,omitempty"`   // [domain:]bus:device.function, as the user wrote it
	Index *int           `json:"index,omitempty"` // position in the set, from 0
}

// ByUUID selects the GPU with this UUID.
func ByUUID(u cudackpt.UUID) Selector { return Selector{UUID: &u} }

// ByPCI selects the GPU at this PCI address, which may be written without its domain.
func ByPCI(address string) Selector { return Selector{PCI: address} }

// ByIndex selects the GPU at this position of the set.
func ByIndex(position int) Selector { return Selector{Index: &position} }

// Validate returns an error if s cannot select anything in any set.
func (s Selector) Validate() error {
	kinds := 0
	if s.UUID != nil {
		kinds++
		if s.UUID.IsZero() {
			return errors.New("the UUID is all zero, which no GPU has")
		}
	}
	if s.PCI != "" {
		kinds++
		if _, err := parsePCI(s.PCI); err != nil {
			return err
		}
	}
	if s.Index != nil {
		kinds++
		if *s.Index < 0 {
			return fmt.Errorf("index %d is negative; positions count from 0", *s.Index)
		}
	}
	if kinds != 1 {
		return fmt.Errorf("%d of uuid, pci and index are given; give exactly one to name a GPU", kinds)
	}
	return nil
}

// String returns s as the user wrote it.
func (s Selector) String() string {
	switch {
	case s.UUID != nil:
		return s.UUID.String()
	case s.PCI != "":
		return "pci " + s.PCI
	case s.Index != nil:
		return fmt.Sprintf("index %d", *s.Index)
	}
	return "nothing"
}

// in returns the positions in set of the GPUs that s selects. If there is more than one, the
// set has two GPUs at the same address.
func (s Selector) in(set []cudackpt.GPU) []int {
	if s.Index != nil {
		if *s.Index < len(set) {
			return []int{*s.Index}
		}
		return nil
	}
	var found []int
	for i, gpu := range set {
		if s.UUID != nil && gpu.UUID == *s.UUID || s.PCI != "" && samePCI(gpu.PCIBusID, s.PCI) {
			found = append(found, i)
		}
	}
	return found
}
