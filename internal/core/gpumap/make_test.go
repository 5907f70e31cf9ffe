package gpumap

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cucriu/cudackpt"
	"cucriu/hooks/config"
)

// gpu makes a GPU whose UUID is one repeated byte. An empty model stands for an H200.
func gpu(id byte, pci, model string) cudackpt.GPU {
	var u cudackpt.UUID
	for i := range u {
		u[i] = id
	}
	if model == "" {
		model = "NVIDIA H200"
	}
	return cudackpt.GPU{UUID: u, Model: model, PCIBusID: pci, Minor: int(id)}
}

// The GPUs of two hosts. On the other host, X sits in B's slot and Y in A's.
var (
	gpuA    = gpu(0xa, "0000:41:00.0", "")
	gpuB    = gpu(0xb, "0000:61:00.0", "")
	gpuC    = gpu(0xc, "0000:81:00.0", "")
	otherX  = gpu(0x1, "0000:61:00.0", "") // in B's slot
	otherY  = gpu(0x2, "0000:41:00.0", "") // in A's slot
	otherZ  = gpu(0x3, "0000:c1:00.0", "")
	h100    = gpu(0x5, "0000:41:00.0", "NVIDIA H100 80GB HBM3")
	h100B   = gpu(0x6, "0000:42:00.0", "NVIDIA H100 80GB HBM3")
	gpuNull = gpu(0, "0000:41:00.0", "")
)

func set(gpus ...cudackpt.GPU) []cudackpt.GPU { return gpus }

func pair(from, to cudackpt.GPU) cudackpt.GPUPair {
	return cudackpt.GPUPair{Old: from.UUID, New: to.UUID}
}

func byUUID(u cudackpt.UUID) config.Selector { return config.Selector{UUID: &u} }
func byPCI(address string) config.Selector   { return config.Selector{PCI: address} }
func byIndex(position int) config.Selector   { return config.Selector{Index: &position} }

func rule(from, to config.Selector, line int) config.Rule {
	return config.Rule{From: from, To: to, Line: line}
}

func move(from, to cudackpt.GPU, line int) config.Rule {
	return rule(byUUID(from.UUID), byUUID(to.UUID), line)
}

// Each case lists the destinations in captured order, and says whether a process that captured
// all of them is sent pairs. The cases on GPUs A and B were seen with the real driver.
func TestMakePlacesEveryCapturedGPU(t *testing.T) {
	for _, tt := range []struct {
		name              string
		captured, visible []cudackpt.GPU
		rules             []config.Rule
		policy            config.Policy
		want              []cudackpt.GPU
		reasons           []Reason
		byOrder           bool // no pairs are sent
		unused            int
	}{
		{name: "nothing captured", visible: set(gpuA)},
		{name: "A stays", captured: set(gpuA), visible: set(gpuA), want: set(gpuA), reasons: []Reason{Identity}, byOrder: true},
		{name: "A and B stay", captured: set(gpuA, gpuB), visible: set(gpuA, gpuB), want: set(gpuA, gpuB), reasons: []Reason{Identity, Identity}, byOrder: true},
		{name: "A stays, more visible after it", captured: set(gpuA), visible: set(gpuA, gpuB), want: set(gpuA), reasons: []Reason{Identity}, byOrder: true},
		{name: "A stays, more visible before it", captured: set(gpuA), visible: set(gpuB, gpuA), want: set(gpuA), reasons: []Reason{Identity}},
		{name: "A and B stay in another order", captured: set(gpuA, gpuB), visible: set(gpuB, gpuA), want: set(gpuA, gpuB), reasons: []Reason{Identity, Identity}},
		{name: "A to B, both visible", captured: set(gpuA), visible: set(gpuA, gpuB), rules: []config.Rule{move(gpuA, gpuB, 4)}, want: set(gpuB), reasons: []Reason{ByRule}},
		{name: "A to B, only B visible", captured: set(gpuA), visible: set(gpuB), want: set(gpuB), reasons: []Reason{SameModel}},
		{name: "exchanged", captured: set(gpuA, gpuB), visible: set(gpuA, gpuB), rules: []config.Rule{move(gpuA, gpuB, 4), move(gpuB, gpuA, 5)}, want: set(gpuB, gpuA), reasons: []Reason{ByRule, ByRule}},
		{name: "one rule, the other filled in", captured: set(gpuA, gpuB), visible: set(gpuA, gpuB), rules: []config.Rule{move(gpuA, gpuB, 4)}, want: set(gpuB, gpuA), reasons: []Reason{ByRule, SameModel}},
		{name: "a rule for a GPU that was not captured", captured: set(gpuA), visible: set(gpuA, gpuB), rules: []config.Rule{move(gpuA, gpuB, 4), move(gpuB, gpuA, 5)}, want: set(gpuB), reasons: []Reason{ByRule}, unused: 1},
		{name: "an unused rule may name what nobody sees", captured: set(gpuA), visible: set(gpuA), rules: []config.Rule{move(gpuB, gpuC, 4), rule(byIndex(7), byIndex(9), 5)}, want: set(gpuA), reasons: []Reason{Identity}, byOrder: true, unused: 2},
		{name: "a rule that keeps a GPU", captured: set(gpuA), visible: set(gpuA), rules: []config.Rule{move(gpuA, gpuA, 4)}, policy: config.FailUnmapped, want: set(gpuA), reasons: []Reason{ByRule}, byOrder: true},
		{name: "another host, slot by slot", captured: set(gpuA, gpuB), visible: set(otherX, otherY), want: set(otherY, otherX), reasons: []Reason{SamePCI, SamePCI}},
		{name: "another host, by order", captured: set(gpuC, gpuA), visible: set(otherZ, otherX), want: set(otherZ, otherX), reasons: []Reason{SameModel, SameModel}},
		{name: "identity of a later GPU before the slot of an earlier one", captured: set(gpuA, otherY), visible: set(otherY, otherZ), want: set(otherZ, otherY), reasons: []Reason{SameModel, Identity}},
		{name: "the slot of a later GPU before the order of an earlier one", captured: set(gpuC, gpuA), visible: set(otherY, otherZ), want: set(otherZ, otherY), reasons: []Reason{SameModel, SamePCI}},
		{name: "the same slot with another model", captured: set(gpuA), visible: set(h100, otherZ), want: set(otherZ), reasons: []Reason{SameModel}},
		{name: "two models", captured: set(h100, gpuB), visible: set(otherZ, h100B), want: set(h100B, otherZ), reasons: []Reason{SameModel, SameModel}},
		{name: "by index to PCI without a domain", captured: set(gpuA, gpuB), visible: set(otherX, otherY), rules: []config.Rule{rule(byIndex(1), byPCI("41:00.0"), 4)}, want: set(otherX, otherY), reasons: []Reason{SameModel, ByRule}},
		{name: "by PCI with NVML's domain to index", captured: set(gpuA, gpuC), visible: set(otherX, otherZ), rules: []config.Rule{rule(byPCI("00000000:81:00.0"), byIndex(0), 4)}, want: set(otherZ, otherX), reasons: []Reason{SameModel, ByRule}},
		{name: "PCI in capitals", captured: set(gpuA), visible: set(gpuA, otherZ), rules: []config.Rule{rule(byIndex(0), byPCI("0000:C1:00.0"), 4)}, want: set(otherZ), reasons: []Reason{ByRule}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			plan, err := Make(tt.captured, tt.visible, tt.rules, tt.policy)
			if err != nil {
				t.Fatal(err)
			}
			var to []cudackpt.GPU
			var reasons []Reason
			var wantPairs Pairs
			for i, a := range plan.Assignments {
				to, reasons = append(to, a.To), append(reasons, a.Reason)
				if a.From != tt.captured[i] {
					t.Errorf("assignment %d is for %v, want %v", i, a.From.UUID, tt.captured[i].UUID)
				}
			}
			if diff := cmp.Diff(tt.want, to); diff != "" {
				t.Errorf("destinations (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.reasons, reasons); diff != "" {
				t.Errorf("reasons (-want +got):\n%s", diff)
			}
			if len(plan.Unused) != tt.unused {
				t.Errorf("%d unused rules, want %d: %v", len(plan.Unused), tt.unused, plan.Unused)
			}
			for i, from := range tt.captured {
				wantPairs = append(wantPairs, pair(from, tt.want[i]))
			}
			if diff := cmp.Diff(wantPairs, plan.Pairs()); diff != "" {
				t.Errorf("pairs (-want +got):\n%s", diff)
			}
			if tt.byOrder {
				wantPairs = nil
			}
			if told, err := plan.Pairs().For(tt.visible); err != nil || cmp.Diff(wantPairs, told) != "" {
				t.Errorf("the driver is told %v (%v), want %v", told, err, wantPairs)
			}
			if got, want := len(plan.Explain()), len(tt.captured)+tt.unused; got != want {
				t.Errorf("Explain gives %d lines, want %d", got, want)
			}
		})
	}
}

// Every refusal names the rule that cannot be met, the GPUs and the remedy.
func TestMakeRefuses(t *testing.T) {
	bothSet := byIndex(0)
	bothSet.PCI = "41:00.0"
	for _, tt := range []struct {
		name              string
		captured, visible []cudackpt.GPU
		rules             []config.Rule
		policy            config.Policy
		words             []string
	}{
		{
			name: "fewer visible", captured: set(gpuA, gpuB), visible: set(gpuB), rules: []config.Rule{move(gpuA, gpuB, 4)},
			words: []string{"the job could see 2 GPUs, and this host shows 1 (", "with 2", "/dev/nvidiaN"},
		},
		{
			name: "none visible", captured: set(gpuA), words: []string{"could see 1 GPU,", "shows 0"},
		},
		{
			name: "two old on one new", captured: set(gpuA, gpuB), visible: set(gpuA, gpuB, gpuC), rules: []config.Rule{move(gpuA, gpuC, 4), rule(byIndex(1), byPCI("81:00.0"), 7)},
			words: []string{"line 4", "line 7", gpuC.UUID.String(), "both map to GPU-"},
		},
		{
			name: "one old twice", captured: set(gpuA, gpuB), visible: set(gpuA, gpuB, gpuC), rules: []config.Rule{move(gpuA, gpuB, 4), rule(byPCI("41:00.0"), byIndex(2), 5)},
			words: []string{"line 4", "line 5", gpuA.UUID.String(), "both map the job's GPU-"},
		},
		{
			name: "one old twice, in agreement", captured: set(gpuA), visible: set(gpuB), rules: []config.Rule{move(gpuA, gpuB, 4), move(gpuA, gpuB, 5)},
			words: []string{"line 4", "line 5", "contradict"},
		},
		{
			name: "unknown new", captured: set(gpuA), visible: set(gpuA, gpuB), rules: []config.Rule{move(gpuA, gpuC, 4)},
			words: []string{"line 4", "there is no GPU with " + gpuC.UUID.String() + " here: cucriu gpus lists 2 GPUs"},
		},
		{
			name: "unknown index", captured: set(gpuA), visible: set(gpuA), rules: []config.Rule{rule(byIndex(0), byIndex(1), 0)},
			words: []string{"the rule from index 0 to index 1: there is no GPU with index 1 here: cucriu gpus lists 1 GPU, from index 0 on"},
		},
		{
			name: "rule onto another model", captured: set(gpuA), visible: set(gpuA, h100), rules: []config.Rule{move(gpuA, h100, 4)},
			words: []string{"line 4", "NVIDIA H200", "NVIDIA H100", "same model"},
		},
		{
			name: "no GPU of the model", captured: set(gpuA, gpuB), visible: set(otherZ, h100), rules: nil,
			words: []string{gpuB.UUID.String(), h100.UUID.String(), "same model"},
		},
		{
			name: "strict, nothing named", captured: set(gpuA, gpuB), visible: set(gpuA, gpuB), rules: []config.Rule{move(gpuA, gpuA, 4)}, policy: config.FailUnmapped,
			words: []string{gpuB.UUID.String(), "unmapped"},
		},
		{
			name: "a set with one GPU twice", captured: set(gpuA), visible: set(gpuB, gpuB),
			words: []string{"twice", "GPUs here", gpuB.UUID.String()},
		},
		{
			name: "a set with no UUID", captured: set(gpuNull), visible: set(gpuB),
			words: []string{"that the job saw", "no UUID"},
		},
		{
			name: "an ambiguous address", captured: set(gpuA, otherY), visible: set(gpuB, gpuC), rules: []config.Rule{rule(byPCI("41:00.0"), byIndex(0), 4)},
			words: []string{"line 4", "selects 2 GPUs that the job saw", otherY.UUID.String()},
		},
		{
			name: "a rule of two selectors", captured: set(gpuA), visible: set(gpuA), rules: []config.Rule{rule(bothSet, byIndex(0), 4)},
			words: []string{"line 4", "from: 2 of uuid, pci and index"},
		},
		{
			name: "a rule of no selector", captured: set(gpuA), visible: set(gpuA), rules: []config.Rule{rule(byIndex(0), config.Selector{}, 4)},
			words: []string{"to: it is missing"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			plan, err := Make(tt.captured, tt.visible, tt.rules, tt.policy)
			var detail *MapError
			if !errors.As(err, &detail) || detail.Cause == "" || detail.Remedy == "" {
				t.Fatalf("plan %v, and %#v does not name cause and remedy", plan.Explain(), err)
			}
			for _, word := range tt.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not mention %q", err, word)
				}
			}
			if len(plan.Assignments) != 0 {
				t.Errorf("a refusal came with assignments: %v", plan.Explain())
			}
		})
	}
}

// The processes of one job can each see a different part of its GPUs, and other GPUs when it is restored than when the
// plan was made.
func TestPairsOfOneProcess(t *testing.T) {
	stay, swap := Pairs{pair(gpuA, gpuA), pair(gpuB, gpuB)}, Pairs{pair(gpuA, gpuB), pair(gpuB, gpuA)}
	second, move := Pairs{pair(gpuB, gpuB)}, Pairs{pair(gpuA, gpuC)}
	for _, tt := range []struct {
		name           string
		plan           Pairs
		captured, sees []cudackpt.GPU
		told           Pairs
		isGone         cudackpt.GPU
	}{
		{name: "nothing", plan: stay, sees: set(gpuA)},
		{name: "all", plan: stay, captured: set(gpuA, gpuB), sees: set(gpuA, gpuB)},
		{name: "the first", plan: stay, captured: set(gpuA), sees: set(gpuA, gpuB)},
		{name: "the second, else the first", plan: stay, captured: set(gpuB), sees: set(gpuA, gpuB), told: second},
		{name: "the second, which is now the first", plan: stay, captured: set(gpuB), sees: set(gpuB)},
		{name: "one more before them", plan: stay, captured: set(gpuA, gpuB), sees: set(gpuC, gpuA, gpuB), told: stay},
		{name: "one more after them", plan: stay, captured: set(gpuA, gpuB), sees: set(gpuA, gpuB, gpuC)},
		{
			name: "in another order", plan: stay, captured: set(gpuB, gpuA), sees: set(gpuA, gpuB),
			told: Pairs{pair(gpuB, gpuB), pair(gpuA, gpuA)},
		},
		{name: "another takes its place", plan: stay, captured: set(gpuA, gpuB), sees: set(gpuA, gpuC), isGone: gpuB},
		{name: "swapped", plan: swap, captured: set(gpuA, gpuB), sees: set(gpuA, gpuB), told: swap},
		{name: "the first, swapped", plan: swap, captured: set(gpuA), sees: set(gpuA, gpuB), told: swap[:1]},
		{name: "the target of a swap is gone", plan: swap, captured: set(gpuA, gpuB), sees: set(gpuB, gpuC), isGone: gpuA},
		{name: "a GPU that others use is gone", plan: swap, captured: set(gpuA), sees: set(gpuB), told: swap[:1]},
		{name: "moved", plan: move, captured: set(gpuA), sees: set(gpuA, gpuC), told: move},
		{name: "moved, and the old one is free again", plan: move, captured: set(gpuA), sees: set(gpuA), isGone: gpuC},
		{name: "unknown to the plan", plan: stay, captured: set(gpuC), sees: set(gpuA, gpuC), told: Pairs{pair(gpuC, gpuC)}},
		{name: "nothing is visible", plan: stay, captured: set(gpuA), isGone: gpuA},
	} {
		t.Run(tt.name, func(t *testing.T) {
			told, err := tt.plan.Of(tt.captured).For(tt.sees)
			if diff := cmp.Diff(tt.told, told); diff != "" {
				t.Errorf("pairs (-want +got):\n%s", diff)
			}
			refusal, gone := new(MapError), tt.isGone.UUID
			switch isGone := errors.As(err, &refusal); {
			case isGone == gone.IsZero(), isGone && !strings.Contains(refusal.Cause, " on "+gone.String()):
				t.Errorf("%v, and %v is gone", err, gone)
			}
		})
	}
}

func TestExplainSaysWhoGoesWhereAndWhy(t *testing.T) {
	plan, err := Make(set(gpuA, gpuB, gpuC), set(gpuA, otherX, otherZ),
		[]config.Rule{rule(byIndex(2), byPCI("c1:00.0"), 9), move(otherY, otherZ, 12)}, config.FillUnmapped)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"GPU-0a0a0a0a-0a0a-0a0a-0a0a-0a0a0a0a0a0a (NVIDIA H200, 0000:41:00.0) stays: same GPU",
		"GPU-0b0b0b0b-0b0b-0b0b-0b0b-0b0b0b0b0b0b (NVIDIA H200, 0000:61:00.0) goes to GPU-01010101-0101-0101-0101-010101010101 (NVIDIA H200, 0000:61:00.0): same PCI address",
		"GPU-0c0c0c0c-0c0c-0c0c-0c0c-0c0c0c0c0c0c (NVIDIA H200, 0000:81:00.0) goes to GPU-03030303-0303-0303-0303-030303030303 (NVIDIA H200, 0000:c1:00.0): the rule on line 9 (from index 2 to pci c1:00.0)",
		"note: the rule on line 12 (from GPU-02020202-0202-0202-0202-020202020202 to GPU-03030303-0303-0303-0303-030303030303) is unused: the job captured no GPU that GPU-02020202-0202-0202-0202-020202020202 selects",
	}
	if diff := cmp.Diff(want, plan.Explain()); diff != "" {
		t.Errorf("Explain (-want +got):\n%s", diff)
	}
	want = []string{
		"GPU 0 of the image (NVIDIA H200, 0000:41:00.0) goes to GPU 0 (0000:41:00.0): same GPU",
		"GPU 1 of the image (NVIDIA H200, 0000:61:00.0) goes to GPU 1 (0000:61:00.0): same PCI address",
		"GPU 2 of the image (NVIDIA H200, 0000:81:00.0) goes to GPU 2 (0000:c1:00.0): the rule on line 9 (from index 2 to pci c1:00.0)",
		want[3],
	}
	if diff := cmp.Diff(want, plan.Summary()); diff != "" {
		t.Errorf("Summary (-want +got):\n%s", diff)
	}
}

func TestARuleForAGPUThatWasNotCapturedIsSkippedUnlessItIsRequired(t *testing.T) {
	seventh := 7
	r := config.Rule{From: config.Selector{Index: &seventh}, To: config.Selector{UUID: &gpuA.UUID}} // as a program makes it, of no line
	plan, err := Make([]cudackpt.GPU{gpuA}, []cudackpt.GPU{gpuA}, []config.Rule{r}, config.FillUnmapped)
	if err != nil || len(plan.Unused) != 1 {
		t.Errorf("%+v %v", plan, err)
	}
	r.Required = true
	if _, err := Make([]cudackpt.GPU{gpuA}, []cudackpt.GPU{gpuA}, []config.Rule{r}, config.FillUnmapped); err == nil || !strings.Contains(err.Error(), "the job saw 1 GPU, there is no index 7") {
		t.Errorf("not refused for what it is: %v", err)
	}
}
