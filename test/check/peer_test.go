package check

import (
	"strconv"
	"testing"

	"cucriu/hooks/preflight"
	"cucriu/internal/testenv"
)

// TestPeerAccessIsDumpedWhereItComesBackAndRefusedElsewhere checks the memory of every GPU
// through each GPU that can reach it. Most of it needs NVIDIA's kernel module, which shows
// which processes come back. What is known without the module has a test of its own.
func TestPeerAccessIsDumpedWhereItComesBackAndRefusedElsewhere(t *testing.T) {
	testenv.Parallel(t)
	const large = 600 // MiB
	for _, test := range []struct {
		name    string
		ballast int // MiB
		args    []string
		refused bool
		real    bool // only on the real driver, because it needs the kernel module
	}{
		{"peer access to small allocations", 1, []string{"--peer", "both"}, false, false},
		{"peer access to a large one", large, []string{"--peer", "both"}, true, true},
		{"one way", large, []string{"--peer", "one"}, true, true},
		{"large allocations without peer access", large, nil, false, true},
		{"peer access to large memory in small parts", large / 3, []string{"--peer", "both", "--ballast-pieces", "4"}, false, true},
		{"a pool with peer access", 1, []string{"--peer", "both", "--memory", "pool"}, true, true},
		{"host NUMA memory", 1, []string{"--gpus", "0", "--memory", "host-numa"}, true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				if test.real && !testenv.RealDriver() {
					t.Skip("needs NVIDIA's kernel module")
				}
				host := testenv.NewHost(t, 2)
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
