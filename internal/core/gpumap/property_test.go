package gpumap

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"cucriu/cudackpt"
	"cucriu/hooks/config"
)

// job is the input of Make.
type job struct {
	captured, visible []cudackpt.GPU
	rules             []config.Rule
	policy            config.Policy
}

func (j job) make() (Plan, error) { return Make(j.captured, j.visible, j.rules, j.policy) }

// slots are the PCI addresses of a host, more than any set here needs.
var slots = []string{
	"0000:41:00.0", "0000:61:00.0", "0000:81:00.0", "0000:a1:00.0", "0000:C1:00.0", "0000:e1:00.0", "0001:41:00.0", "0001:61:00.0",
}

var models = []string{"NVIDIA H200", "NVIDIA H100 80GB HBM3"}

// drawSet draws GPUs from a small pool, so that sets overlap in UUIDs and in PCI addresses, but
// not always in both. Now and then a GPU has another model name.
func drawSet(t *rapid.T, name string) []cudackpt.GPU {
	ids := rapid.SliceOfNDistinct(rapid.IntRange(1, 7), 0, 5, rapid.ID[int]).Draw(t, name+" ids")
	at := rapid.Permutation(slots).Draw(t, name+" slots")
	var gpus []cudackpt.GPU
	for i, id := range ids {
		model := models[id%2]
		if rapid.IntRange(0, 7).Draw(t, name+" renamed") == 0 {
			model = models[0]
		}
		gpus = append(gpus, gpu(byte(id), at[i], model))
	}
	return gpus
}

// drawSelector selects a GPU of set most of the time, and otherwise one that is not there.
func drawSelector(t *rapid.T, name string, set []cudackpt.GPU) config.Selector {
	if i := rapid.IntRange(0, len(set)).Draw(t, name); i < len(set) {
		return drawName(t, name, set, i)
	}
	return rapid.SampledFrom([]config.Selector{
		byUUID(gpu(0xee, "", "").UUID), byPCI("ff:1f.7"), byIndex(len(set)),
	}).Draw(t, name+" absent")
}

// drawName names one GPU of set in any of the three ways.
func drawName(t *rapid.T, name string, set []cudackpt.GPU, i int) config.Selector {
	return rapid.SampledFrom([]config.Selector{byUUID(set[i].UUID), byPCI(set[i].PCIBusID), byIndex(i)}).Draw(t, name+" named")
}

// drawJob draws any job: two sets that match, or two that need not, and rules that may
// contradict each other.
func drawJob(t *rapid.T) job {
	var j job
	if rapid.Bool().Draw(t, "may have no map") {
		j = job{captured: drawSet(t, "captured"), visible: drawSet(t, "visible")}
	} else {
		j = drawPlannable(t)
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "more rules") {
		r := rule(drawSelector(t, "from", j.captured), drawSelector(t, "to", j.visible), 40+i)
		if len(j.rules) > 0 {
			other := rapid.SampledFrom(j.rules).Draw(t, "another rule")
			switch rapid.SampledFrom([]string{"", "from", "to", "both"}).Draw(t, "shared") {
			case "from":
				r.From = other.From
			case "to":
				r.To = other.To
			case "both":
				r.From, r.To = other.From, other.To
			}
		}
		j.rules = append(j.rules, r)
	}
	j.policy = rapid.SampledFrom([]config.Policy{config.FillUnmapped, config.FillUnmapped, config.FillUnmapped, config.FailUnmapped}).Draw(t, "policy")
	return j
}

// drawPlannable draws a job for which there is a map: each captured GPU has a partner among the
// visible ones, and the rules that apply name these partners.
func drawPlannable(t *rapid.T) job {
	j := job{captured: drawSet(t, "captured"), policy: config.FillUnmapped}
	n := len(j.captured)
	ids := rapid.SliceOfNDistinct(rapid.IntRange(1, 10), n, n+3, rapid.ID[int]).Draw(t, "visible ids")
	at := rapid.Permutation(slots).Draw(t, "visible slots")
	var partners []cudackpt.GPU
	for i, id := range ids {
		model := models[id%2]
		if i < n {
			model = j.captured[i].Model
		}
		partners = append(partners, gpu(byte(id), at[i], model))
	}
	j.visible = rapid.Permutation(partners).Draw(t, "visible")
	for i := range j.captured {
		if rapid.IntRange(0, 2).Draw(t, "has a rule") == 0 {
			j.rules = append(j.rules, rule(
				drawName(t, "from", j.captured, i),
				drawName(t, "to", j.visible, slices.Index(j.visible, partners[i])), 10+i))
		}
	}
	if rapid.Bool().Draw(t, "has an unused rule") {
		j.rules = append(j.rules, rule(byIndex(n), byIndex(99), 30))
	}
	return j
}

func (j job) mustMake(t *rapid.T) Plan {
	plan, err := j.make()
	if err != nil {
		t.Fatalf("there is a map, but: %v", err)
	}
	return plan
}

// selects is the meaning of a selector, written in another way than in config.Selector.in.
func selects(s config.Selector, set []cudackpt.GPU, i int) bool {
	switch {
	case s.Index != nil:
		return *s.Index == i
	case s.UUID != nil:
		return set[i].UUID == *s.UUID
	}
	a, errA := cudackpt.ParsePCI(s.PCI)
	b, errB := cudackpt.ParsePCI(set[i].PCIBusID)
	return errA == nil && errB == nil && a == b
}

// anyMapExists tries every injective map. It knows nothing about filling in.
func anyMapExists(j job) bool {
	for i := range j.captured {
		named := 0
		for _, r := range j.rules {
			if selects(r.From, j.captured, i) {
				named++
			}
		}
		if named > 1 || named == 0 && j.policy == config.FailUnmapped {
			return false
		}
	}
	used := make([]bool, len(j.visible))
	var try func(i int) bool
	try = func(i int) bool {
		if i == len(j.captured) {
			return true
		}
		for v := range j.visible {
			if used[v] || j.visible[v].Model != j.captured[i].Model || !allowed(j, i, v) {
				continue
			}
			used[v] = true
			if try(i + 1) {
				return true
			}
			used[v] = false
		}
		return false
	}
	return try(0)
}

func allowed(j job, captured, visible int) bool {
	for _, r := range j.rules {
		if selects(r.From, j.captured, captured) && !selects(r.To, j.visible, visible) {
			return false
		}
	}
	return true
}

func TestMakeSucceedsExactlyWhenAMapExists(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for range 20 { // among rapid's usual 100 jobs, some contradictions would be rare
			j := drawJob(t)
			plan, err := j.make()
			if exists := anyMapExists(j); exists != (err == nil) {
				t.Fatalf("a map exists: %v, but Make gives %v, %v", exists, plan.Explain(), err)
			}
		}
	})
}

func TestPlanKeepsTheRulesOfTheDriverAndOfTheUser(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := drawPlannable(t)
		plan := j.mustMake(t)
		if len(plan.Assignments) != len(j.captured) {
			t.Fatalf("%d assignments for %d captured GPUs", len(plan.Assignments), len(j.captured))
		}
		used := 0
		taken := make(map[cudackpt.UUID]bool)
		for i, a := range plan.Assignments {
			if a.From != j.captured[i] {
				t.Errorf("old side %d is %v, captured was %v", i, a.From, j.captured[i])
			}
			v := slices.Index(j.visible, a.To)
			if v < 0 {
				t.Fatalf("%v is not visible", a.To)
			}
			if taken[a.To.UUID] {
				t.Errorf("%v is taken twice", a.To)
			}
			taken[a.To.UUID] = true
			if a.From.Model != a.To.Model {
				t.Errorf("%v goes to another model: %v", a.From, a.To)
			}
			for _, r := range j.rules {
				if selects(r.From, j.captured, i) {
					used++
					if !selects(r.To, j.visible, v) {
						t.Errorf("%v is not obeyed: %v goes to %v", r, a.From, a.To)
					}
					if a.Reason != ByRule || a.Rule == nil || a.Rule.Line != r.Line {
						t.Errorf("%v is obeyed but not named: %v, %v", r, a.Reason, a.Rule)
					}
				}
			}
		}
		if used+len(plan.Unused) != len(j.rules) {
			t.Errorf("%d rules used, %d unused, %d given", used, len(plan.Unused), len(j.rules))
		}
	})
}

// Rules come first, then identity, then PCI address, then order: each for all GPUs before the
// next.
func TestFillingKeepsItsRank(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := drawPlannable(t)
		plan := j.mustMake(t)
		rankOf := make(map[cudackpt.UUID]Reason) // of the captured GPU that took this visible one
		for _, a := range plan.Assignments {
			rankOf[a.To.UUID] = a.Reason
		}
		last := make(map[string]int) // the last visible position filled by order, by model
		for _, a := range plan.Assignments {
			for _, now := range j.visible {
				if now.Model != a.From.Model || now == a.To {
					continue
				}
				rank := SameModel
				switch {
				case now.UUID == a.From.UUID:
					rank = Identity
				case cudackpt.SamePCI(now.PCIBusID, a.From.PCIBusID):
					rank = SamePCI
				}
				if rank >= a.Reason {
					continue
				}
				// This place is better than the one it got, so a captured GPU of at least that
				// rank must hold it.
				if holder, held := rankOf[now.UUID]; !held || holder > rank {
					t.Errorf("%v got %v by %v although %v was there by %v", a.From, a.To, a.Reason, now, rank)
				}
			}
			if a.Reason == SameModel {
				v := slices.Index(j.visible, a.To)
				if before, any := last[a.From.Model]; any && v < before {
					t.Errorf("filling by order went back from %d to %d", before, v)
				}
				last[a.From.Model] = v
			}
		}
	})
}

func TestMakeIsDeterministicAndLeavesItsInputAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := drawJob(t)
		before := job{slices.Clone(j.captured), slices.Clone(j.visible), slices.Clone(j.rules), j.policy}
		first, err1 := j.make()
		second, err2 := j.make()
		if diff := cmp.Diff(first, second, cmp.AllowUnexported(Plan{})); diff != "" {
			t.Fatalf("two plans (-first +second):\n%s", diff)
		}
		if (err1 == nil) != (err2 == nil) || err1 != nil && err1.Error() != err2.Error() {
			t.Fatalf("two answers: %v; %v", err1, err2)
		}
		if diff := cmp.Diff(before, j, cmp.AllowUnexported(job{})); diff != "" {
			t.Fatalf("the input changed:\n%s", diff)
		}
		// Where every rule can be met, their order must not matter.
		j.rules = rapid.Permutation(j.rules).Draw(t, "rules in another order")
		third, err3 := j.make()
		if (err1 == nil) != (err3 == nil) {
			t.Fatalf("the order of the rules decides: %v; %v", err1, err3)
		}
		if diff := cmp.Diff(first.Assignments, third.Assignments); diff != "" {
			t.Fatalf("the order of the rules decides:\n%s", diff)
		}
	})
}

// What each process of a job is given: its own old side, complete and in order, with the plan's
// new side, or nothing where pairing by order does the same. So it stays whatever the process sees later, or it fails.
func TestPairsCoverExactlyWhatAProcessCaptured(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := drawPlannable(t)
		plan := j.mustMake(t)
		target := make(map[cudackpt.UUID]cudackpt.UUID)
		for _, a := range plan.Assignments {
			target[a.From.UUID] = a.To.UUID
		}
		own := rapid.Permutation(j.captured).Draw(t, "order")[:rapid.IntRange(0, len(j.captured)).Draw(t, "size")]
		sees := j.visible
		if rapid.Bool().Draw(t, "sees others now") {
			sees = rapid.Permutation(append(drawSet(t, "new"), j.visible...)).Draw(t, "sees")
			sees = cudackpt.Union(sees)[:rapid.IntRange(0, len(cudackpt.Union(sees))).Draw(t, "are left")]
		}
		told, err := plan.Pairs().Of(own).For(sees)
		isGone := slices.ContainsFunc(own, func(gpu cudackpt.GPU) bool {
			return !slices.Contains(cudackpt.UUIDsOf(sees), target[gpu.UUID])
		})
		if isGone != (err != nil) {
			t.Fatalf("a GPU of the plan is gone: %v, but the driver is told %v, %v", isGone, told, err)
		}
		if err != nil {
			return
		}
		if told == nil { // as the driver pairs by order
			for i, gpu := range own {
				told = append(told, cudackpt.GPUPair{Old: gpu.UUID, New: sees[i].UUID})
			}
		}
		if len(told) != len(own) {
			t.Fatalf("%d pairs for %d GPUs", len(told), len(own))
		}
		for i, p := range told {
			if p.Old != own[i].UUID || p.New != target[own[i].UUID] {
				t.Errorf("pair %d is %v, want %v to %v", i, p, own[i].UUID, target[own[i].UUID])
			}
		}
	})
}
