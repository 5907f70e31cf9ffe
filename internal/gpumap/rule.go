package gpumap

import "fmt"

// Rule is one pair that the user asked for.
type Rule struct {
	From Selector `json:"from"`           // among the captured GPUs
	To   Selector `json:"to"`             // among the visible GPUs
	Line int      `json:"line,omitempty"` // where it stands in the configuration file; 0 if it is not from a file
}

// String names the rule by its line, if it has one, and by its two sides.
func (r Rule) String() string {
	if r.Line > 0 {
		return fmt.Sprintf("the rule on line %d (from %v to %v)", r.Line, r.From, r.To)
	}
	return fmt.Sprintf("the rule from %v to %v", r.From, r.To)
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
