package run

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// TestConnectionsToTheOutsideComeBackClosed, and named; those inside of the job come back.
func TestConnectionsToTheOutsideComeBackClosed(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.flags = []string{"--every", "0"}
		outside := listen(t)
		w.host.Setenv(connectVariable, outside)
		r := w.run()
		w.ticks(5)
		if before := w.report(); !before.Outside || before.Echoes == 0 {
			t.Fatalf("the job is not connected: %+v", before)
		}
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		before := w.report()
		r = w.goesOn("000001")
		r.says(" to " + outside + " leads out of the job and is restored closed")
		w.ticks(5)
		if after := w.report(); after.Outside || after.Echoes <= before.Echoes {
			t.Errorf("before %+v, after %+v", before, after)
		}
		w.finish(r)
	})
}

// TestPortsWithClosedConnectionsAreBoundAtOnce: the job listens without SO_REUSEADDR, and the kernel
// keeps connections that it has closed.
func TestPortsWithClosedConnectionsAreBoundAtOnce(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		const closed = `
import os, socket, sys
listener = socket.socket(); listener.set_inheritable(True)
listener.bind(("127.0.0.1", 0)); listener.listen()
client = socket.create_connection(listener.getsockname())
served, _ = listener.accept()
served.close(); client.close()
os.execv(sys.argv[1], sys.argv[1:])
`
		w := newWorld(t)
		w.flags = []string{"--every", "0"}
		w.command = append([]string{"/usr/bin/python3", "-c", closed}, w.command...)
		r := w.run()
		w.ticks(3)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		w.finish(w.goesOn("000001"))
	})
}

// listen returns the address of an echo outside of the job.
func listen(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c) }()
		}
	}()
	return listener.Addr().String()
}

// TestAJobSeesTheGPUsOfItsRun, and goes on with those of the next one.
func TestAJobSeesTheGPUsOfItsRun(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newCUDAWorld(t)
		bin := w.host.HookBin
		w.host = testenv.NewHost(t, 3)
		w.host.HookBin = bin
		w.flags = []string{"--every", "0"}
		uuids := w.host.UUIDs()
		is := func(want string) {
			t.Helper()
			testenv.Eventually(t, testenv.Soon, "the job uses "+want, func() bool {
				var status struct {
					Bad  int
					GPUs []struct{ UUID string }
				}
				data, err := os.ReadFile(filepath.Join(w.cuda, "status"))
				if err != nil || json.Unmarshal(data, &status) != nil {
					return false
				}
				if status.Bad != 0 {
					t.Fatalf("%s", data)
				}
				return len(status.GPUs) == 1 && status.GPUs[0].UUID == want
			})
		}
		for i, given := range []string{"1", "2", uuids[0]} {
			w.host.Setenv("CUDA_VISIBLE_DEVICES", given)
			r := w.run()
			if i > 0 {
				r.says("resumes from checkpoint") // the job runs before its restore is over
			}
			is([]string{uuids[1], uuids[2], uuids[0]}[i])
			if i == 2 {
				w.stop(0)
				r.ends(0)
				break
			}
			r.signal(unix.SIGTERM)
			r.ends(requeue)
		}
		w.nothingLeft()
	})
}

// TestAJobThatSawTwoGPUsIsNotResumedOnOne, and no older checkpoint is taken instead.
func TestAJobThatSawTwoGPUsIsNotResumedOnOne(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newCUDAWorld(t)
		bin := w.host.HookBin
		w.host = testenv.NewHost(t, 3)
		w.host.HookBin = bin
		w.host.Setenv("CUDA_VISIBLE_DEVICES", "0,1")
		r := w.run()
		r.verified(2)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		newest := w.newest()
		for value, shown := range map[string]int{"0": 1, "7": 0, "none": 0, "": 0} {
			w.host.Setenv("CUDA_VISIBLE_DEVICES", value)
			w.run().ends(125, "checkpoint "+newest, "cannot be restored here: the job could see 2 GPUs",
				fmt.Sprintf("and CUDA_VISIBLE_DEVICES=%s shows it %d of the 3 of this host: let it name 2 ", value, shown))
		}
		w.host.Setenv("CUDA_VISIBLE_DEVICES", "2,0")
		r = w.run()
		r.says("resumes from checkpoint " + newest)
		w.stop(0)
		r.ends(0)
	})
}

// TestASandboxHidesNothingThatIsNeeded: what would be hidden is refused at the start.
func TestASandboxHidesNothingThatIsNeeded(t *testing.T) {
	for name, test := range map[string]struct {
		base, says string
		flags      []string
	}{
		"tmp": {"/tmp", "--private-tmp hides ", []string{"--private-tmp"}},
		"shm": {"/dev/shm", "a job has a /dev/shm of its own, which hides ", nil},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := newWorld(t)
				var err error
				if w.dir, err = os.MkdirTemp(test.base, "long-"); err != nil {
					t.Fatal(err)
				}
				defer os.RemoveAll(w.dir)
				w.run(test.flags...).ends(125, test.says+w.dir)
			})
		})
	}
}

// TestAnotherUsersJobNeedsCapSysResource: criu cannot dump it without, and that is said at the start.
func TestAnotherUsersJobNeedsCapSysResource(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		w.command = []string{"/bin/sleep", "600"}
		w.flags = []string{"--every", "1s", "--user", "nobody"}
		capabilities, err := proc.Capabilities()
		if err != nil {
			t.Fatal(err)
		}
		r := w.run()
		if capabilities&(1<<unix.CAP_SYS_RESOURCE) == 0 {
			r.ends(125, "CAP_SYS_RESOURCE")
			return
		}
		r.verified(1)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		w.flags = []string{"--every", "1s", "--user", "root"}
		w.run().ends(125, "has the credentials of user ", "but the job should run as root")
	})
}

// TestAPathWithoutTheSystemsProgramsIsNamed: they are installed.
func TestAPathWithoutTheSystemsProgramsIsNamed(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		for _, value := range []string{"", "/nonexistent"} {
			w.host.Setenv("PATH", value)
			w.run().ends(125, "unshare of util-linux was not found in PATH="+value+": let PATH name its directory")
			w.nothingLeft()
		}
	})
}
