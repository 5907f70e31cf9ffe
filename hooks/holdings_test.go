package hooks

import (
	"testing"

	"cucriu/cudackpt"
	"cucriu/internal/nvrm"
)

// TestHoldingFindings: the rows were measured on two H200s, with what became of each.
func TestHoldingFindings(t *testing.T) {
	two, one := make([]cudackpt.GPU, 2), make([]cudackpt.GPU, 1)
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
	} {
		t.Run(test.name, func(t *testing.T) {
			m := &Member{GPUs: test.gpus}
			if got := severities(peerFindings([]peerUse{{member: m, holdings: &test.holdings}})); got != test.want {
				t.Fatalf("%q, want %q", got, test.want)
			}
		})
	}
}
