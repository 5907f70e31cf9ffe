package inspect

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
	"cucriu/internal/nvrm"
	"cucriu/internal/proc"
)

func TestPeerFindings(t *testing.T) {
	a, b := cudackpt.UUID{1}, cudackpt.UUID{2}
	const large, least, little = 2 << 30, 512 << 20, 512<<20 - 1
	listed := func(sizes map[cudackpt.UUID]uint64, models ...string) *Process {
		p := &Process{Ident: proc.Ident{PID: 7}, Listed: sizes}
		for i, model := range models {
			p.GPUs = append(p.GPUs, cudackpt.GPU{UUID: []cudackpt.UUID{a, b}[i], Model: model})
		}
		return p
	}
	on := func(first, second uint64, models ...string) *Process {
		return listed(map[cudackpt.UUID]uint64{a: first, b: second}, models...)
	}
	env := strings.Fields
	const h200, h100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"
	const expandable = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
	for _, test := range []struct {
		name    string
		use     peerUse
		refused bool
		remedy  string // what it must name
	}{
		{"two GPUs", peerUse{of: on(large, large)}, true, "CUDA_VISIBLE_DEVICES"},
		{"much on one of two", peerUse{of: on(large, 1<<20)}, true, ""},
		{"one GPU", peerUse{of: listed(map[cudackpt.UUID]uint64{a: large})}, false, ""},
		{"one GPU, and another mapped", peerUse{of: listed(map[cudackpt.UUID]uint64{a: large}), mapped: []string{"/dev/nvidia0", "/dev/nvidia1"}}, false, ""},
		{"too little for such an allocation", peerUse{of: on(little, little)}, false, ""},
		{"as much as one such allocation", peerUse{of: on(least, 1<<20)}, true, ""},
		{"a context and little else on Hopper", peerUse{of: on(518<<20, 750<<20, h200, h100)}, false, ""},
		{"room for one beside a small context on Hopper", peerUse{of: on(518<<20, 254<<20+least, h200, h100)}, true, ""},
		{"the same amounts on other GPUs", peerUse{of: on(518<<20, 518<<20, "another", "another")}, true, ""},
		{"an amount that NVML does not tell", peerUse{of: on(cudackpt.UnknownMemory, 1<<20)}, true, ""},
		{"not listed, with one GPU mapped", peerUse{of: listed(nil), mapped: []string{"/dev/nvidia0"}}, false, ""},
		{"not listed, with two GPUs mapped", peerUse{of: listed(nil), mapped: []string{"/dev/nvidia0", "/dev/nvidia1"}}, true, ""},
		{"not listed, without a context", peerUse{of: listed(nil)}, false, ""},

		{"PyTorch", peerUse{of: on(large, large), pyTorch: true}, true, expandable},
		{"JAX", peerUse{of: on(large, large), jax: true}, true, "XLA_PYTHON_CLIENT_PREALLOCATE=false"},
		{"PyTorch with expandable segments", peerUse{of: on(large, large), pyTorch: true, environment: env(expandable)}, false, ""},
		{"and other settings", peerUse{of: on(large, large), pyTorch: true, environment: env("A=b PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128,expandable_segments:True")}, false, ""},
		{"switched off", peerUse{of: on(large, large), pyTorch: true, environment: env("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False")}, true, ""},
		{"switched off again", peerUse{of: on(large, large), pyTorch: true, environment: env("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,expandable_segments:False")}, true, ""},
		{"written as PyTorch does not read it", peerUse{of: on(large, large), pyTorch: true, environment: env("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:true")}, true, ""},
		{"the setting without PyTorch", peerUse{of: on(large, large), environment: env(expandable)}, true, ""},
		{"the setting, and JAX beside it", peerUse{of: on(large, large), pyTorch: true, jax: true, environment: env(expandable)}, true, ""},
		{"the new name", peerUse{of: on(large, large), pyTorch: true, newName: true, environment: env("PYTORCH_ALLOC_CONF=expandable_segments:True")}, false, ""},
		{"the new name, which its PyTorch does not read", peerUse{of: on(large, large), pyTorch: true, environment: env("PYTORCH_ALLOC_CONF=expandable_segments:True")}, true, ""},
		{"both names, of which one says no", peerUse{of: on(large, large), pyTorch: true, newName: true, environment: env("PYTORCH_ALLOC_CONF=a:b " + expandable)}, true, ""},

		{"little, of PyTorch's pools", peerUse{of: on(1<<20, 1<<20), pyTorch: true, environment: env("PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync")}, true, ""},
		{"little, of JAX's pools", peerUse{of: on(1<<20, 1<<20), jax: true, environment: env("XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async")}, true, ""},
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
			if test.refused && (findings[0].PID != 7 || !strings.Contains(findings[0].Remedy, test.remedy)) {
				t.Errorf("%v does not name %q", findings[0], test.remedy)
			}
		})
	}
	if got := severities(peerUse{of: on(large, large)}.findings().Force([]string{preflight.FindingPeerMemory})); got != "peer-memory=forced" {
		t.Errorf("%s after it was forced", got)
	}
}

// The sizes were measured on two H200s.
func TestAContextIsToldFromAnInitializedDriverByTheMappings(t *testing.T) {
	mapped := func(path string, size uint64) mapping {
		return mapping{file: &file{link: path}, Range: proc.Range{Start: 1 << 40, End: 1<<40 + size}}
	}
	initialized := []mapping{
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
			if got := severities(peerUse{of: m, holdings: &test.holdings, measured: true}.findings()); got != test.want {
				t.Fatalf("%q, want %q", got, test.want)
			}
		})
	}
}

// FuzzEnvironment: a process writes there what it likes.
func FuzzEnvironment(f *testing.F) {
	f.Add("A=b\x00PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128,expandable_segments:True\x00")
	f.Add("NCCL_P2P_DISABLE=0x1\x00NCCL_SHM_DISABLE=1")
	f.Add("PYTORCH_ALLOC_CONF=\x00=\x00\xff\x1b[31m=,:,:")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		environment := strings.Split(text, "\x00")
		u := peerUse{of: &Process{}, pyTorch: true, environment: environment}
		if u.expandable() && !strings.Contains(text, "expandable_segments") {
			t.Errorf("%q names no setting", text)
		}
		if ncclIsHarmless(environment) && !strings.Contains(text, "NCCL_SHM_DISABLE=") {
			t.Errorf("%q switches nothing off", text)
		}
	})
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
