package check

import (
	"strconv"
	"testing"

	"cucriu/hooks/preflight"
	"cucriu/internal/testenv"
)

// TestPeerAccessIsDumpedWhereItComesBackAndRefusedElsewhere checks the memory of every GPU
// through each GPU that can reach it. The kernel module tells which processes come back. What is
// known without it has a test of its own.
func TestPeerAccessIsDumpedWhereItComesBackAndRefusedElsewhere(t *testing.T) {
	testenv.Parallel(t)
	large, options := 600, []string(nil) // MiB
	if !testenv.RealDriver() {
		large, options = 12, []string{"--peer-limit-mib", "8"}
	}
	for _, test := range []struct {
		name    string
		ballast int // MiB
		args    []string
		refused bool
	}{
		{"peer access to small allocations", 1, []string{"--peer", "both"}, false},
		{"peer access to a large one", large, []string{"--peer", "both"}, true},
		{"one way", large, []string{"--peer", "one"}, true},
		{"large allocations without peer access", large, nil, false},
		{"peer access to large memory in small parts", large / 3, []string{"--peer", "both", "--ballast-pieces", "4"}, false},
		{"a pool with peer access", 1, []string{"--peer", "both", "--memory", "pool"}, true},
		{"host NUMA memory", 1, []string{"--gpus", "0", "--memory", "host-numa"}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 2, options...)
				args := append([]string{"--gpus", "0,1", "--ballast", strconv.Itoa(test.ballast)}, test.args...)
				job := host.Start(1, args...)
				if test.refused {
					name := preflight.FindingPeerMemory
					if test.name == "host NUMA memory" {
						name = preflight.FindingHostNUMA
					}
					testenv.Refused(t, host, job, name, t.TempDir())
				} else {
					host.Restore(host.Dump(job))
				}
				job.Runs()
			})
		})
	}
}
