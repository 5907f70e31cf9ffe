// Package container shows the hook at work under a container runtime: Debian's
// runc checkpoints and restores containers on simulated hosts, and all that it
// and criu are told of the hook is an action-script line in runc's
// configuration file for criu.
package container

import (
	"fmt"
	"testing"

	"cucriu/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// onBoth runs a test with cgroup v1 and with cgroup v2.
func onBoth(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	for _, version := range []int{1, 2} {
		t.Run(fmt.Sprintf("cgroup-v%d", version), func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				testenv.MountCgroups(t, version)
				test(t)
			})
		})
	}
}

func TestCheckpointAndRestore(t *testing.T) {
	onBoth(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		container := host.StartContainer([]int{0}, 1)
		before := container.Ticks()[0]
		container.Checkpoint()
		if container.Alive() {
			t.Fatal("the container lives on after it was checkpointed")
		}
		container.Restore()
		container.Runs()
		if after := container.Ticks()[0]; after <= before {
			t.Fatalf("the counter was %d before and is %d after", before, after)
		}
	})
}
