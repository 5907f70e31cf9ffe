package run

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// cudaSocket returns the name of the socket of the world's CUDA process, without the NUL at its end.
func (w *world) cudaSocket() string {
	w.t.Helper()
	var place *placeRecord // the job may run before it is written
	testenv.Eventually(w.t, testenv.Soon, "the job has a sandbox", func() bool { place = w.place(); return place != nil && place.Root != 0 })
	var namespace unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/pid", place.Init.PID), &namespace); err != nil {
		w.t.Fatal(err)
	}
	job := testenv.JobOf(w.t, place.Init.PID)
	job.Dirs = []string{w.cuda}
	return fmt.Sprintf("@cuda-uvmfd-%d-%d", namespace.Ino, job.MustStatus(0).PID)
}

// TestTwoLongJobsOnOneHost: the kernel gives the number of a pid namespace again, and jobs have the
// same pids in theirs, so that what is named after both is the other job's when one is resumed.
func TestTwoLongJobsOnOneHost(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		a := newCUDAWorld(t)
		a.flags = []string{"--every", "0"}
		r := a.run()
		a.ticks(3)
		name := a.cudaSocket()
		r.signal(unix.SIGTERM)
		r.ends(requeue)

		b := newCUDAWorld(t)
		b.flags = a.flags
		other := b.run()
		b.ticks(3)
		if b.cudaSocket() != name { // another namespace has got the number
			holder, err := net.Listen("unixpacket", name+"\x00")
			if err == nil {
				defer holder.Close()
			} else if !errors.Is(err, unix.EADDRINUSE) { // a job of another test on this machine has the name by now
				t.Fatal(err)
			}
		}
		r = a.goesOn("000001")
		a.checks()
		b.checks()
		if listed, err := os.ReadFile("/proc/net/unix"); err != nil || !strings.Contains(string(listed), a.cudaSocket()+"@") {
			t.Errorf("no socket %s: %v\n%s", a.cudaSocket(), err, listed)
		}
		b.stop(0)
		other.ends(0)
		a.finish(r)
	})
}
