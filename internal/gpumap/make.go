package gpumap

import (
	"fmt"
	"slices"

	"cucriu/cudackpt"
)

// Make assigns a visible GPU to every captured one. captured are the GPUs that the processes of
// the job together could see when they were checkpointed; visible are those that they can see
// now. Both are ordered. The user's rules come first. The remaining GPUs are
// filled in or refused, as the policy says.
func Make(captured, visible []cudackpt.GPU, rules []Rule, policy Policy) (Plan, error) {
	m := maker{
		captured: captured,
		visible:  visible,
		target:   make([]int, len(captured)),
		reason:   make([]Reason, len(captured)),
		rule:     make([]*Rule, len(captured)),
		taken:    make([]bool, len(visible)),
	}
	for i := range m.target {
		m.target[i] = unplaced
	}
	for _, step := range []func() error{
		m.checkSets,
		func() error { return checkRules(rules) },
		m.checkCount,
		func() error { return m.obey(rules) },
		func() error { return m.checkUnmapped(policy) },
		m.fill,
	} {
		if err := step(); err != nil {
			return Plan{}, err
		}
	}
	return m.makePlan(), nil
}

const unplaced = -1

// maker is a map in the making. target, reason and rule run along captured, taken along
// visible. target holds positions in visible.
type maker struct {
	captured, visible []cudackpt.GPU
	target            []int
	reason            []Reason
	rule              []*Rule
	taken             []bool // along visible
	unused            []Rule
}

// checkSets refuses a set that names a GPU twice or a GPU without a UUID. With such a set the
// old side of the pairs would not be exact, or the new side not injective.
func (m *maker) checkSets() error {
	for _, set := range []struct {
		name string
		gpus []cudackpt.GPU
	}{{"captured", m.captured}, {"visible", m.visible}} {
		seen := make(map[cudackpt.UUID]bool, len(set.gpus))
		for _, gpu := range set.gpus {
			cause := ""
			switch {
			case gpu.UUID.IsZero():
				cause = fmt.Sprintf("a %s GPU has no UUID: %s", set.name, describe(gpu))
			case seen[gpu.UUID]:
				cause = fmt.Sprintf("%s is listed twice among the %s GPUs", describe(gpu), set.name)
			default:
				seen[gpu.UUID] = true
				continue
			}
			return &MapError{
				Kind: ErrInvalidSet, GPUs: []cudackpt.GPU{gpu}, Cause: cause,
				Remedy: "compare the manifest of the image and /proc/driver/nvidia/gpus with nvidia-smi -L",
			}
		}
	}
	return nil
}

func checkRules(rules []Rule) error {
	for _, r := range rules {
		if err := r.Validate(); err != nil {
			return &MapError{
				Kind: ErrInvalidRule, Rules: []Rule{r},
				Cause:  fmt.Sprintf("%v cannot be read: %v", r, err),
				Remedy: "correct it in the configuration file",
			}
		}
	}
	return nil
}

// checkCount comes before the rules, because no rule can make up for a missing GPU.
func (m *maker) checkCount() error {
	if len(m.visible) >= len(m.captured) {
		return nil
	}
	return &MapError{
		Kind: ErrTooFew, GPUs: m.captured,
		Cause: fmt.Sprintf("the driver restores onto no fewer GPUs than were captured, used or not: captured were %d (%s), visible are %d (%s)",
			len(m.captured), describeAll(m.captured), len(m.visible), describeAll(m.visible)),
		Remedy: "make more device nodes (/dev/nvidiaN) visible to the restored processes, or restore on a host with as many GPUs",
	}
}

// obey places the GPUs that the user's rules name.
func (m *maker) obey(rules []Rule) error {
	owner := make([]*Rule, len(m.visible)) // the rule that took a visible GPU
	for i := range rules {
		r := rules[i]
		from, err := one(r, r.From, m.captured, "captured")
		if err != nil {
			return err
		}
		if from == unplaced {
			m.unused = append(m.unused, r)
			continue
		}
		to, err := one(r, r.To, m.visible, "visible")
		if err != nil {
			return err
		}
		old := m.captured[from]
		if to == unplaced {
			return &MapError{
				Kind: ErrNotVisible, Rules: []Rule{r}, GPUs: []cudackpt.GPU{old},
				Cause:  fmt.Sprintf("%v sends %s to a GPU that the restored processes cannot see; visible: %s", r, describe(old), describeAll(m.visible)),
				Remedy: "name a visible GPU in the rule, or make that GPU's device node visible to them",
			}
		}
		if first := m.rule[from]; first != nil {
			return conflict(*first, r, "both place the captured GPU "+describe(old), old)
		}
		if first := owner[to]; first != nil {
			return conflict(*first, r, "both fill the visible GPU "+describe(m.visible[to]), old)
		}
		if !sameModel(old, m.visible[to]) {
			return &MapError{
				Kind: ErrModelMismatch, Rules: []Rule{r}, GPUs: []cudackpt.GPU{old},
				Cause: fmt.Sprintf("%v sends %s to %s, and the driver restores a GPU only onto one of the same model",
					r, describe(old), describe(m.visible[to])),
				Remedy: "name a GPU of the same model in the rule; visible: " + describeAll(m.visible),
			}
		}
		m.place(from, to, ByRule)
		m.rule[from], owner[to] = &r, &r
	}
	return nil
}

// one returns the position of the single GPU that s selects, or unplaced if there is none.
func one(r Rule, s Selector, set []cudackpt.GPU, name string) (int, error) {
	found := s.in(set)
	switch len(found) {
	case 0:
		return unplaced, nil
	case 1:
		return found[0], nil
	}
	var gpus []cudackpt.GPU
	for _, i := range found {
		gpus = append(gpus, set[i])
	}
	return unplaced, &MapError{
		Kind: ErrInvalidRule, Rules: []Rule{r}, GPUs: gpus,
		Cause:  fmt.Sprintf("in %v, %v selects %d %s GPUs: %s", r, s, len(found), name, describeAll(gpus)),
		Remedy: "name the GPU by its UUID",
	}
}

func conflict(first, second Rule, what string, gpu cudackpt.GPU) error {
	return &MapError{
		Kind: ErrConflict, Rules: []Rule{first, second}, GPUs: []cudackpt.GPU{gpu},
		Cause:  fmt.Sprintf("%v and %v contradict each other: %s", first, second, what),
		Remedy: "remove or correct one of them",
	}
}

// checkUnmapped applies the strict policy. Any policy but Fill, the default, is strict.
func (m *maker) checkUnmapped(policy Policy) error {
	rest := m.unplacedGPUs()
	if policy == FillUnmapped || policy == "" || len(rest) == 0 {
		return nil
	}
	return &MapError{
		Kind: ErrUnmapped, GPUs: rest,
		Cause:  "unmapped is set to error, and no rule names these captured GPUs: " + describeAll(rest),
		Remedy: "add a rule for each (captured are GPUs that the job could see, used or not), or set unmapped to fill",
	}
}

// fill places the GPUs that no rule named. Each pass runs over all remaining GPUs before the
// next begins, so that a GPU that could go anywhere never takes the place of one that stays. A
// GPU is placed only onto one of the same model, so the models do not affect each other, and
// within a model any GPU is as good as another. So no choice of an earlier pass or rule can
// rule out a map that exists.
func (m *maker) fill() error {
	m.pass(Identity, func(old, now cudackpt.GPU) bool { return old.UUID == now.UUID })
	m.pass(SamePCI, func(old, now cudackpt.GPU) bool { return samePCI(old.PCIBusID, now.PCIBusID) })
	m.pass(SameModel, func(_, _ cudackpt.GPU) bool { return true })

	rest := m.unplacedGPUs()
	if len(rest) == 0 {
		return nil
	}
	var free []cudackpt.GPU
	for i, gpu := range m.visible {
		if !m.taken[i] {
			free = append(free, gpu)
		}
	}
	return &MapError{
		Kind: ErrNoSameModel, GPUs: rest,
		Cause: fmt.Sprintf("the driver restores a GPU only onto one of the same model, and none is left for %s; still free: %s",
			describeAll(rest), describeAll(free)),
		Remedy: "make GPUs of that model visible to the restored processes, or restore on a host that has them",
	}
}

func (m *maker) pass(reason Reason, match func(old, now cudackpt.GPU) bool) {
	for i, old := range m.captured {
		if m.target[i] != unplaced {
			continue
		}
		for j, now := range m.visible {
			if !m.taken[j] && sameModel(old, now) && match(old, now) {
				m.place(i, j, reason)
				break
			}
		}
	}
}

func (m *maker) place(from, to int, reason Reason) {
	m.target[from], m.reason[from], m.taken[to] = to, reason, true
}

func (m *maker) unplacedGPUs() []cudackpt.GPU {
	var rest []cudackpt.GPU
	for i, gpu := range m.captured {
		if m.target[i] == unplaced {
			rest = append(rest, gpu)
		}
	}
	return rest
}

func (m *maker) makePlan() Plan {
	p := Plan{Unused: slices.Clip(m.unused)}
	for i, old := range m.captured {
		p.Assignments = append(p.Assignments, Assignment{From: old, To: m.visible[m.target[i]], Reason: m.reason[i], Rule: m.rule[i]})
	}
	for _, gpu := range m.visible {
		p.visible = append(p.visible, gpu.UUID)
	}
	return p
}

// sameModel compares the model names that the driver gives. Two unknown names are equal: where
// the host hides them, the driver has to judge.
func sameModel(a, b cudackpt.GPU) bool { return a.Model == b.Model }
