package inspect

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
	"cucriu/internal/kit/drivers"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/nvrm"
	"cucriu/internal/kit/proc"
)

// TestPeerFindingsWithoutTheKernelModule: who has contexts on two GPUs is refused, whatever else can be seen.
func TestPeerFindingsWithoutTheKernelModule(t *testing.T) {
	on := func(sizes ...uint64) *Process {
		p := &Process{Ident: proc.Ident{PID: 7}, Listed: make(map[cudackpt.UUID]uint64)}
		for i, size := range sizes {
			p.Listed[cudackpt.UUID{byte(i + 1)}] = size
		}
		return p
	}
	const zero, one = "/dev/nvidia0", "/dev/nvidia1"
	for _, test := range []struct {
		name    string
		use     peerUse
		refused bool
	}{
		{"two GPUs", peerUse{of: on(2<<30, 2<<30)}, true},
		{"little", peerUse{of: on(1<<20, 1<<20)}, true},
		{"an amount that NVML does not tell", peerUse{of: on(cudackpt.UnknownMemory, 1<<20)}, true},
		{"PyTorch", peerUse{of: on(2<<30, 2<<30), pyTorch: true}, true},
		{"one GPU", peerUse{of: on(2 << 30)}, false},
		{"one GPU, and another mapped", peerUse{of: on(2 << 30), mapped: []string{zero, one}}, false},
		{"not listed, with one GPU mapped", peerUse{of: on(), mapped: []string{zero}}, false},
		{"not listed, with two GPUs mapped", peerUse{of: on(), mapped: []string{zero, one}}, true},
		{"not listed, without a context", peerUse{of: on()}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			findings := test.use.findings()
			want := ""
			if test.refused {
				want = "peer-memory=error"
			}
			if got := severities(findings); got != want {
				t.Fatalf("%q, want %q", got, want)
			}
			if test.refused && (findings[0].PID != 7 || !strings.Contains(findings[0].Remedy, "CUDA_VISIBLE_DEVICES")) {
				t.Errorf("%v names no remedy", findings[0])
			}
		})
	}
	if got := severities(peerUse{of: on(2<<30, 2<<30)}.findings().Force([]string{preflight.FindingPeerMemory})); got != "peer-memory=forced" {
		t.Errorf("%s after it was forced", got)
	}
}

// The sizes were measured on two H200s.
func TestAContextIsToldFromAnInitializedDriverByTheMappings(t *testing.T) {
	mapped := func(path string, size uint64) inventory.Mapping {
		return inventory.Mapping{File: &inventory.File{Link: path}, Range: proc.Range{Start: 1 << 40, End: 1<<40 + size}}
	}
	initialized := []inventory.Mapping{
		mapped("/dev/nvidia0", 64<<10), mapped("/dev/nvidia0", 64<<10), mapped("/dev/nvidia1", 64<<10), mapped("/dev/nvidia1", 64<<10),
		mapped("/dev/nvidiactl", 64<<20), mapped("/dev/nvidia-uvm", 2<<20),
	}
	if got := contextNodes(initialized); len(got) > 0 {
		t.Errorf("contexts on %v after cuInit alone", got)
	}
	if diff := cmp.Diff([]string{"/dev/nvidia1"}, contextNodes(append(initialized, mapped("/dev/nvidia1", 2<<20)))); diff != "" {
		t.Error(diff)
	}
}

// TestHoldingFindings: every row was measured on two H200s, with what became of the process.
func TestHoldingFindings(t *testing.T) {
	two, one := []cudackpt.GPU{{UUID: cudackpt.UUID{1}}, {UUID: cudackpt.UUID{2}}}, []cudackpt.GPU{{UUID: cudackpt.UUID{1}}}
	for _, test := range []struct {
		name     string
		gpus     []cudackpt.GPU
		holdings nvrm.Holdings
		want     string
	}{
		{"two contexts", two, nvrm.Holdings{}, ""},
		{"peer access and small allocations", two, nvrm.Holdings{PeerAccess: 1}, ""},
		{"large allocations without peer access", two, nvrm.Holdings{Fabric: 2}, "peer-memory=warning"},
		{"large allocations, and one GPU to see", one, nvrm.Holdings{Fabric: 1}, ""},
		{"peer access to large allocations", two, nvrm.Holdings{PeerAccess: 1, Fabric: 2, FabricShared: 2}, "peer-memory=error"},
		{"a pool with peer access", two, nvrm.Holdings{PeerAccess: 1, Pools: 2}, "peer-memory=error"},
		{"host NUMA memory", one, nvrm.Holdings{HostNUMA: 1}, "host-numa-memory=error"},
		{"what looks like it in any process on two GPUs", two, nvrm.Holdings{PeerAccess: 1, HostNUMA: 4}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := &Process{GPUs: test.gpus, Listed: make(map[cudackpt.UUID]uint64)}
			for _, gpu := range test.gpus {
				m.Listed[gpu.UUID] = 1 << 30
			}
			if got := severities(peerUse{of: m, holdings: &test.holdings, driver: drivers.For("580.159.04")}.findings()); got != test.want {
				t.Fatalf("%q, want %q", got, test.want)
			}
		})
	}
}

// TestWhatIsBelievedOfAnotherDriver: what its module shows, and not that it shows nothing.
func TestWhatIsBelievedOfAnotherDriver(t *testing.T) {
	const gib = 1 << 30
	on := func(n int) *Process {
		m := &Process{Ident: proc.Ident{PID: os.Getpid()}, Listed: make(map[cudackpt.UUID]uint64)}
		for i := range n {
			m.GPUs = append(m.GPUs, cudackpt.GPU{UUID: cudackpt.UUID{byte(i + 1)}})
			m.Listed[m.GPUs[i].UUID] = gib
		}
		return m
	}
	for name, test := range map[string]struct {
		gpus     int
		holdings nvrm.Holdings
		want     string
	}{
		"host NUMA memory":                  {1, nvrm.Holdings{HostNUMA: 1}, "host-numa-memory=error"},
		"one GPU":                           {1, nvrm.Holdings{}, ""},
		"two GPUs, and nothing found":       {2, nvrm.Holdings{}, "peer-memory=error"},
		"peer access to a large allocation": {2, nvrm.Holdings{FabricShared: 1}, "peer-memory=error"},
	} {
		if got := severities(peerUse{of: on(test.gpus), holdings: &test.holdings}.findings()); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}

	one, two := *on(1), *on(2)
	why := errors.New("driver 610.1 is unknown")
	for name, test := range map[string]struct {
		of     Process
		kernel kernelAnswer
		want   string
	}{
		"not asked":                 {one, kernelAnswer{unknown: why}, "host-numa-memory=warning"},
		"asked":                     {one, kernelAnswer{holdings: map[int]*nvrm.Holdings{one.PID: {}}}, ""},
		"on two GPUs, nobody knows": {two, kernelAnswer{unknown: why}, ""},
	} {
		got := notLookedFor([]Process{test.of}, test.kernel)
		if severities(got) != test.want || test.want != "" && !strings.Contains(got[0].String(), why.Error()) {
			t.Errorf("%s: %v, want %q", name, got, test.want)
		}
	}
}
