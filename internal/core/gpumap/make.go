package gpumap

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"cucriu/cudackpt"
	"cucriu/hooks/config"
	"cucriu/internal/kit/units"
)

// Make assigns a visible GPU to every captured one. captured are the GPUs that the processes of
// the job together could see when they were checkpointed; visible are those that they can see
// now. Both are ordered. The user's rules come first. The remaining GPUs are
// filled in or refused, as the policy says. An error of Make is a [*MapError].
func Make(captured, visible []cudackpt.GPU, rules []config.Rule, policy config.Policy) (Plan, error) {
	m := maker{captured: captured, visible: visible, placed: make([]Assignment, len(captured))}
	err := m.check(rules)
	if err == nil {
		err = m.obey(rules)
	}
	if err == nil {
		err = m.fill(policy)
	}
	if err != nil {
		return Plan{}, err
	}
	return Plan{Assignments: m.placed, Unused: m.unused, visible: cudackpt.UUIDsOf(visible)}, nil
}

// MapError says why there is no map, and what to do about it.
type MapError struct{ Cause, Remedy string }

// Error returns the cause and the remedy.
func (e *MapError) Error() string { return "GPU map: " + e.Cause + "; " + e.Remedy }

func refuse(remedy, cause string, arguments ...any) error {
	return &MapError{Cause: fmt.Sprintf(cause, arguments...), Remedy: remedy}
}

// maker is a map in the making.
type maker struct {
	captured, visible []cudackpt.GPU
	placed            []Assignment // of captured, in their order; empty for one that is not placed yet
	unused            []config.Rule
}

// check refuses a set that names a GPU twice or a GPU without a UUID: with such a set the
// old side of the pairs would not be exact, or the new side not injective. It refuses rules that
// select nothing in any set, and a destination with too few GPUs, which no rule can make up for.
func (m *maker) check(rules []config.Rule) error {
	const remedy = "compare the manifest of the image and /proc/driver/nvidia/gpus with nvidia-smi -L"
	for _, set := range []struct {
		name string
		gpus []cudackpt.GPU
	}{{"that the job saw", m.captured}, {"here", m.visible}} {
		for i, gpu := range set.gpus {
			if gpu.UUID.IsZero() {
				return refuse(remedy, "a GPU %s has no UUID: %s", set.name, describe(gpu))
			}
			if slices.Contains(cudackpt.UUIDsOf(set.gpus[:i]), gpu.UUID) {
				return refuse(remedy, "%s is listed twice among the GPUs %s", describe(gpu), set.name)
			}
		}
	}
	for _, r := range rules {
		if err := r.Validate(); err != nil {
			return refuse("correct it in the configuration file", "%v cannot be read: %v", r, err)
		}
	}
	if len(m.visible) >= len(m.captured) {
		return nil
	}
	return refuse(fmt.Sprintf("use a host with %d, or make more /dev/nvidiaN visible here", len(m.captured)),
		"the job could see %s, and this host shows %d (GPUs that it did not use count)",
		units.Count(len(m.captured), "GPU"), len(m.visible))
}

// obey places the GPUs that the user's rules name.
func (m *maker) obey(rules []config.Rule) error {
	for _, r := range rules {
		from, err := one(r, r.From, m.captured, "that the job saw")
		if err != nil {
			return err
		}
		if from == none && r.Required {
			return refuse("cucriu map -D shows those of an image", "--map: the job saw %s, there is no %v", units.Count(len(m.captured), "GPU"), r.From)
		}
		if from == none {
			m.unused = append(m.unused, r)
			continue
		}
		to, err := one(r, r.To, m.visible, "here")
		if err != nil {
			return err
		}
		old := m.captured[from]
		if to == none {
			return refuse("name another one; a GPU is listed only if its device node is visible here",
				"%v: there is no GPU with %v here: cucriu gpus lists %s, from index 0 on", r, r.To, units.Count(len(m.visible), "GPU"))
		}
		now := m.visible[to]
		if first := m.placed[from].Rule; first != nil {
			return conflict(*first, r, "both map the job's "+describe(old))
		}
		if holder := m.holder(now); holder != none {
			return conflict(*m.placed[holder].Rule, r, "both map to "+describe(now))
		}
		if !sameModel(old, now) {
			return refuse("name a GPU of the same model in the rule; this host shows "+describeAll(m.visible),
				"%v maps %s to %s, but the driver restores a GPU only onto one of the same model", r, describe(old), describe(now))
		}
		m.placed[from] = Assignment{From: old, To: now, Reason: ByRule, Rule: &r}
	}
	return nil
}

const none = -1

// holder returns the position of the captured GPU that goes to a visible one, or none.
func (m *maker) holder(gpu cudackpt.GPU) int {
	return slices.IndexFunc(m.placed, func(a Assignment) bool { return a.To.UUID == gpu.UUID })
}

// one returns the position of the single GPU that s selects, or none if there is none.
func one(r config.Rule, s config.Selector, set []cudackpt.GPU, name string) (int, error) {
	found := s.In(set)
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
	return none, refuse("name the GPU by its UUID", "in %v, %v selects %d GPUs %s: %s", r, s, len(found), name, describeAll(gpus))
}

func conflict(first, second config.Rule, what string) error {
	return refuse("remove or correct one of them", "%v and %v contradict each other: %s", first, second, what)
}

// fill places the GPUs that no rule named, or refuses them if the policy is strict, which any but
// config.FillUnmapped, the default, is. Each pass runs over all remaining GPUs before the next begins, so
// that a GPU that could go anywhere never takes the place of one that stays. A GPU is placed only
// onto one of the same model, so the models do not affect each other, and within a model any GPU is
// as good as another. So no choice of an earlier pass or rule can rule out a map that exists.
func (m *maker) fill(policy config.Policy) error {
	if rest := m.unplaced(); policy != config.FillUnmapped && policy != "" && len(rest) > 0 {
		return refuse("add a rule for each, or set unmapped to fill",
			"unmapped is set to error, and no rule names these GPUs, which the job could see, used or not: %s", describeAll(rest))
	}
	m.pass(Identity, func(old, now cudackpt.GPU) bool { return old.UUID == now.UUID })
	m.pass(SamePCI, func(old, now cudackpt.GPU) bool { return cudackpt.SamePCI(old.PCIBusID, now.PCIBusID) })
	m.pass(SameModel, func(_, _ cudackpt.GPU) bool { return true })
	rest := m.unplaced()
	if len(rest) == 0 {
		return nil
	}
	free := slices.DeleteFunc(slices.Clone(m.visible), func(gpu cudackpt.GPU) bool { return m.holder(gpu) != none })
	return refuse("make GPUs of that model visible to the restored processes, or restore on a host that has them",
		"the driver restores a GPU only onto one of the same model, and none is free for %s; still free: %s", describeAll(rest), describeAll(free))
}

func (m *maker) pass(reason Reason, match func(old, now cudackpt.GPU) bool) {
	for i, old := range m.captured {
		if m.isPlaced(i) {
			continue
		}
		fits := func(now cudackpt.GPU) bool { return m.holder(now) == none && sameModel(old, now) && match(old, now) }
		if to := slices.IndexFunc(m.visible, fits); to >= 0 {
			m.placed[i] = Assignment{From: old, To: m.visible[to], Reason: reason}
		}
	}
}

func (m *maker) isPlaced(captured int) bool { return !m.placed[captured].To.UUID.IsZero() }

// unplaced lists the captured GPUs that are not placed yet.
func (m *maker) unplaced() []cudackpt.GPU {
	var rest []cudackpt.GPU
	for i, gpu := range m.captured {
		if !m.isPlaced(i) {
			rest = append(rest, gpu)
		}
	}
	return rest
}

// sameModel compares the model names that the driver gives. Two unknown names are equal: where
// the host hides them, the driver has to judge.
func sameModel(a, b cudackpt.GPU) bool { return a.Model == b.Model }

// describe names a GPU so that a person can find it in nvidia-smi -L and in lspci.
func describe(gpu cudackpt.GPU) string {
	return fmt.Sprintf("%v (%s, %s)", gpu.UUID, cmp.Or(gpu.Model, "model unknown"), cmp.Or(gpu.PCIBusID, "PCI address unknown"))
}

func describeAll(gpus []cudackpt.GPU) string {
	var names []string
	for _, gpu := range gpus {
		names = append(names, describe(gpu))
	}
	return cmp.Or(strings.Join(names, ", "), "none")
}
