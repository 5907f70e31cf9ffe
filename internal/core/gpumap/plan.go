package gpumap

import (
	"fmt"
	"slices"

	"cucriu/cudackpt"
	"cucriu/hooks/config"
)

// Reason says why a captured GPU goes where it goes.
type Reason int

const (
	ByRule    Reason = iota // the user asked for it
	Identity                // the same GPU is visible
	SamePCI                 // a GPU of the same model sits at the same PCI address
	SameModel               // the next free GPU of the same model
)

// String returns the reason in a few words.
func (r Reason) String() string {
	return []string{ByRule: "rule", Identity: "same GPU", SamePCI: "same PCI address", SameModel: "same model, next in order"}[r]
}

// Assignment says where one captured GPU goes.
type Assignment struct {
	From   cudackpt.GPU
	To     cudackpt.GPU
	Reason Reason
	Rule   *config.Rule // the rule that asked for it; nil unless Reason is ByRule
}

// Plan is the map of a whole job. The zero Plan is the map of a job that captured no GPU.
type Plan struct {
	Assignments []Assignment  // one for each captured GPU, in the captured order
	Unused      []config.Rule // rules whose From selects no captured GPU

	visible []cudackpt.UUID // in order: the driver pairs by it when it is given no map
}

// Pairs is a plan as it is recorded: where each captured GPU goes, whether it stays or not.
type Pairs []cudackpt.GPUPair

// Pairs returns what is recorded of a plan.
func (p Plan) Pairs() (pairs Pairs) {
	for _, a := range p.Assignments {
		pairs = append(pairs, cudackpt.GPUPair{Old: a.From.UUID, New: a.To.UUID})
	}
	return pairs
}

// Of returns the part of one process of the job, which captured exactly these GPUs. A GPU that the plan does not know
// is paired with itself. If it were left out, the driver would move it by order, or refuse the whole map.
func (p Pairs) Of(captured []cudackpt.GPU) (pairs Pairs) {
	for _, gpu := range captured {
		pair := cudackpt.GPUPair{Old: gpu.UUID, New: gpu.UUID}
		if at := slices.IndexFunc(p, func(known cudackpt.GPUPair) bool { return known.Old == gpu.UUID }); at >= 0 {
			pair = p[at]
		}
		pairs = append(pairs, pair)
	}
	return pairs
}

// For returns what the driver is told of the part of a process that sees these GPUs now, or a [*MapError] if one of the
// plan is not among them. Without a map the driver pairs GPUs by their order: if that has the same result and every GPU
// stays where it was, For returns nil. A process that captured only the second GPU needs a map, or it gets the first.
func (p Pairs) For(visible []cudackpt.GPU) (Pairs, error) {
	byOrder := true
	for i, pair := range p {
		at := slices.Index(cudackpt.UUIDsOf(visible), pair.New)
		if at < 0 {
			return nil, refuse("restore or resume again: that plans with the GPUs that are visible then",
				"the plan puts the job's %v on %v, which is not visible any more", pair.Old, pair.New)
		}
		byOrder = byOrder && at == i && pair.Old == pair.New
	}
	if byOrder {
		return nil, nil
	}
	return p, nil
}

// Explain describes the plan in words that a person can check: one line for each GPU, then a
// note for each rule that did not apply.
func (p Plan) Explain() []string {
	return p.describe(func(_ int, a Assignment) string {
		if a.From.UUID == a.To.UUID {
			return describe(a.From) + " stays"
		}
		return describe(a.From) + " goes to " + describe(a.To)
	})
}

// Summary is [Plan.Explain] without UUIDs: GPUs are named by their positions in the captured and
// in the visible set.
func (p Plan) Summary() []string {
	return p.describe(func(i int, a Assignment) string {
		to := slices.Index(p.visible, a.To.UUID)
		return fmt.Sprintf("GPU %d of the image (%s, %s) goes to GPU %d (%s)", i, a.From.Model, a.From.PCIBusID, to, a.To.PCIBusID)
	})
}

func (p Plan) describe(what func(i int, a Assignment) string) []string {
	var lines []string
	for i, a := range p.Assignments {
		why := a.Reason.String()
		if a.Rule != nil {
			why = a.Rule.String()
		}
		lines = append(lines, what(i, a)+": "+why)
	}
	for _, r := range p.Unused {
		lines = append(lines, UnusedNote(r))
	}
	return lines
}

// UnusedNote says that a rule did not apply.
func UnusedNote(r config.Rule) string {
	return fmt.Sprintf("note: %v is unused: the job captured no GPU that %v selects", r, r.From)
}
