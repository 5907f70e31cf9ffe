package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"cucriu/cudackpt"
)

// Rule is one pair that the user asked for.
type Rule struct {
	From Selector `json:"from"`           // among the captured GPUs
	To   Selector `json:"to"`             // among the visible GPUs
	Line int      `json:"line,omitempty"` // where it stands in the configuration file; 0 if it is not from a file
	// File names that file if it is not this host's.
	File string `json:"file,omitempty"`
	// Required makes it an error that From was not captured. Without it the rule is skipped, so that one
	// file can serve many jobs.
	Required bool `json:"required,omitempty"`
}

// String names the rule by its line, if it has one, and by its two sides.
func (r Rule) String() string {
	switch {
	case r.File != "":
		return fmt.Sprintf("the rule on line %d of %s (from %v to %v)", r.Line, r.File, r.From, r.To)
	case r.Line > 0:
		return fmt.Sprintf("the rule on line %d (from %v to %v)", r.Line, r.From, r.To)
	}
	return fmt.Sprintf("the rule from %v to %v", r.From, r.To)
}

// ParseRule reads a pair written as FROM=TO. Each side is an index, a UUID or a PCI address. The rule is
// required.
func ParseRule(text string) (Rule, error) {
	from, to, isPair := strings.Cut(text, "=")
	if !isPair {
		return Rule{}, errors.New("expected FROM=TO, such as 0=1")
	}
	if strings.Contains(text, ",") {
		return Rule{}, errors.New("one pair each: --map 0=1 --map 1=0")
	}
	r := Rule{Required: true}
	var err error
	if r.From, err = parseSelector(from); err != nil {
		return Rule{}, fmt.Errorf("from: %w", err)
	}
	if r.To, err = parseSelector(to); err != nil {
		return Rule{}, fmt.Errorf("to: %w", err)
	}
	return r, r.Validate()
}

func parseSelector(text string) (Selector, error) {
	if index, err := strconv.Atoi(text); err == nil {
		return Selector{Index: &index}, nil
	}
	if strings.Contains(text, ":") {
		return Selector{PCI: text}, nil
	}
	if !strings.Contains(text, "-") {
		return Selector{}, fmt.Errorf("%q is not an index, a UUID or a PCI address", text)
	}
	uuid, err := cudackpt.ParseUUID(text)
	return Selector{UUID: &uuid}, err
}

// Validate returns an error if r can never apply.
func (r Rule) Validate() error {
	if err := r.From.Validate(); err != nil {
		return fmt.Errorf("from: %w", err)
	}
	if err := r.To.Validate(); err != nil {
		return fmt.Errorf("to: %w", err)
	}
	return nil
}

// Policy says what becomes of captured GPUs that no rule names. Empty is FillUnmapped.
type Policy string

const (
	// FillUnmapped pairs them by identity, then by PCI address, then by order.
	FillUnmapped Policy = "fill"
	// FailUnmapped refuses the restore.
	FailUnmapped Policy = "error"
)

// Selector names one GPU of an ordered set. Exactly one field must be set.
type Selector struct {
	UUID  *cudackpt.UUID `json:"uuid,omitempty"`
	PCI   string         `json:"pci,omitempty"`   // [domain:]bus:device.function, as the user wrote it
	Index *int           `json:"index,omitempty"` // position in the set, from 0
}

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
		if _, err := cudackpt.ParsePCI(s.PCI); err != nil {
			return err
		}
	}
	if s.Index != nil {
		kinds++
		if *s.Index < 0 {
			return fmt.Errorf("index %d is negative; positions count from 0", *s.Index)
		}
	}
	if kinds == 0 {
		return errors.New("it is missing")
	}
	if kinds > 1 {
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

// In returns the positions in set of the GPUs that s selects. If there is more than one, the
// set has two GPUs at the same address.
func (s Selector) In(set []cudackpt.GPU) []int {
	if s.Index != nil {
		if *s.Index < len(set) {
			return []int{*s.Index}
		}
		return nil
	}
	var found []int
	for i, gpu := range set {
		if s.UUID != nil && gpu.UUID == *s.UUID || s.PCI != "" && cudackpt.SamePCI(gpu.PCIBusID, s.PCI) {
			found = append(found, i)
		}
	}
	return found
}
