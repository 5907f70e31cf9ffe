package inspect

import (
	"testing"

	"cucriu/cudackpt"
	"cucriu/internal/nvrm"
)

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
			m, listed := &Process{GPUs: test.gpus}, make(map[cudackpt.UUID]uint64)
			for _, gpu := range test.gpus {
				listed[gpu.UUID] = 1 << 30
			}
			if got := severities(peerUse{of: m, holdings: &test.holdings, listed: listed}.findings()); got != test.want {
				t.Fatalf("%q, want %q", got, test.want)
			}
		})
	}
}
