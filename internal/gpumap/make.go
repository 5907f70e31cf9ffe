package gpumap

import "cucriu/cudackpt"

// Make assigns a visible GPU to every captured one. captured are the GPUs that the processes of
// the job together could see when they were checkpointed; visible are those that they can see
// now. Both are ordered. The user's rules come first. The remaining GPUs are
// filled in or refused, as the policy says.
func Make(captured, visible []cudackpt.GPU, rules []Rule, policy Policy) (Plan, error) {
	m := maker{captured: captured, visible: visible, placed: make([]Assignment, len(captured)), done: make([]bool, len(captured)), taken: make([]bool, len(visible))}
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
	return Plan{Assignments: m.placed, Unused: m.unused, visible: UUIDsOf(visible)}, nil
}

const none = -1

// maker is a map in the making. placed and done run along captured, taken along visible.
type maker struct {
	captured, visible []cudackpt.GPU
	placed            []Assignment
	done, taken       []bool
	unused            []Rule
}

// checkSets refuses a set that names a GPU twice or a GPU without a UUID. With such a set the
// old side of the pairs would not be exact, or the new side not injective.
func (m *maker) checkSets() error {
	const remedy = "compare the manifest of the image and /proc/driver/nvidia/gpus with nvidia-smi -L"
	for _, set := range []struct {
		name string
		gpus []cudackpt.GPU
	}{{"captured", m.captured}, {"visible", m.visible}} {
		seen := make(map[cudackpt.UUID]bool, len(set.gpus))
		for _, gpu := range set.gpus {
			if gpu.UUID.IsZero() {
				return refuse(ErrInvalidSet, remedy, "a %s GPU has no UUID: %s", set.name, describe(gpu))
			}
			if seen[gpu.UUID] {
				return refuse(ErrInvalidSet, remedy, "%s is listed twice among the %s GPUs", describe(gpu), set.name)
			}
			seen[gpu.UUID] = true
		}
	}
	return nil
}

func checkRules(rules []Rule) error {
	for _, r := range rules {
		if err := r.Validate(); err != nil {
			return refuse(ErrInvalidRule, "correct it in the configuration file", "%v cannot be read: %v", r, err)
		}
	}
	return nil
}

// checkCount comes before the rules, because no rule can make up for a missing GPU.
func (m *maker) checkCount() error {
	if len(m.visible) >= len(m.captured) {
		return nil
	}
	return refuse(ErrTooFew, "make more device nodes (/dev/nvidiaN) visible to the restored processes, or restore on a host with as many GPUs",
		"the driver needs at least as many GPUs as were captured, used or not: %d were captured (%s), %d are visible (%s)",
		len(m.captured), describeAll(m.captured), len(m.visible), describeAll(m.visible))
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
		if from == none {
			m.unused = append(m.unused, r)
			continue
		}
		to, err := one(r, r.To, m.visible, "visible")
		if err != nil {
			return err
		}
		old := m.captured[from]
		if to == none {
			return refuse(ErrNotVisible, "name a visible GPU in the rule, or make that GPU's device node visible to them",
				"%v maps %s to a GPU that the restored processes cannot see; visible: %s", r, describe(old), describeAll(m.visible))
		}
		if first := m.placed[from].Rule; first != nil {
			return conflict(*first, r, "both map the captured GPU "+describe(old))
		}
		if first := owner[to]; first != nil {
			return conflict(*first, r, "both map to the visible GPU "+describe(m.visible[to]))
		}
		if !sameModel(old, m.visible[to]) {
			return refuse(ErrModelMismatch, "name a GPU of the same model in the rule; visible: "+describeAll(m.visible),
				"%v maps %s to %s, but the driver restores a GPU only onto one of the same model", r, describe(old), describe(m.visible[to]))
		}
		m.place(from, to, ByRule)
		m.placed[from].Rule, owner[to] = &r, &r
	}
	return nil
}

// one returns the position of the single GPU that s selects, or none if there is none.
func one(r Rule, s Selector, set []cudackpt.GPU, name string) (int, error) {
	found := s.in(set)
	switch len(found) {
	case 0:
		return none, nil
	case 1:
		return found[0], nil
	}
	var gpus []cudackpt.GPU
	for _, i := range found {
		gpus = append(gpus, set[i])
	}
	return none, refuse(ErrInvalidRule, "name the GPU by its UUID", "in %v, %v selects %d %s GPUs: %s", r, s, len(found), name, describeAll(gpus))
}

func conflict(first, second Rule, what string) error {
	return refuse(ErrConflict, "remove or correct one of them", "%v and %v contradict each other: %s", first, second, what)
}

// checkUnmapped applies the strict policy. Any policy but Fill, the default, is strict.
func (m *maker) checkUnmapped(policy Policy) error {
	rest := m.unplacedGPUs()
	if policy == FillUnmapped || policy == "" || len(rest) == 0 {
		return nil
	}
	return refuse(ErrUnmapped, "add a rule for each (captured are GPUs that the job could see, used or not), or set unmapped to fill",
		"unmapped is set to error, and no rule names these captured GPUs: %s", describeAll(rest))
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
	return refuse(ErrNoSameModel, "make GPUs of that model visible to the restored processes, or restore on a host that has them",
		"the driver restores a GPU only onto one of the same model, and none is free for %s; still free: %s", describeAll(rest), describeAll(free))
}

func (m *maker) pass(reason Reason, match func(old, now cudackpt.GPU) bool) {
	for i, old := range m.captured {
		if m.done[i] {
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
	m.placed[from] = Assignment{From: m.captured[from], To: m.visible[to], Reason: reason}
	m.done[from], m.taken[to] = true, true
}

func (m *maker) unplacedGPUs() []cudackpt.GPU {
	var rest []cudackpt.GPU
	for i, gpu := range m.captured {
		if !m.done[i] {
			rest = append(rest, gpu)
		}
	}
	return rest
}

// sameModel compares the model names that the driver gives. Two unknown names are equal: where
// the host hides them, the driver has to judge.
func sameModel(a, b cudackpt.GPU) bool { return a.Model == b.Model }
