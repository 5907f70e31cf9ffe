package hosts

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"cucriu/internal/testenv"
)

func TestMain(m *testing.M) { Main(m) }

// TestAJobMovesByHand: dumped on one host, copied, restored on the other one, there and back, without
// sshd and between hosts whose clocks differ.
func TestAJobMovesByHand(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := New(t, Options{WithoutSSH: true, B: HostOptions{Clock: 50 * time.Hour}})
		w := p.A.Start(1, "--mib", "8", "--loaders", "2")
		watch := w.Watch()
		for _, way := range [][2]*Host{{p.A, p.B}, {p.B, p.A}} {
			from, to := way[0], way[1]
			w.Is(from)
			before := w.Tick(from)
			from.Run("cucriu", "dump", "-t", w.Root(), "-D", "/tmp/images")
			testenv.Eventually(t, testenv.Soon, "no copy is left after the dump", func() bool { return len(w.Copies()) == 0 })
			w.Carry(to)
			from.Run("sh", "-c", "tar -C /tmp -c images | "+from.RSH()+" "+to.Name+" tar -C /tmp -x")
			from.Run(from.RSH(), to.Name, "cucriu", "restore", "-D", "/tmp/images")
			w.Is(to)
			if w.Tick(to) <= before {
				t.Fatalf("the work was at tick %d on host %s and is at %d on host %s", before, from.Name, w.Tick(to), to.Name)
			}
			p.wantGPU(w, to)
			from.Run("rm", "-r", "/tmp/images")
			to.Run("rm", "-r", "/tmp/images")
		}
		watch.Stop()
	})
}

// wantGPU fails the test unless the work is on a GPU of this host.
func (p *Pair) wantGPU(w *Job, on *Host) {
	p.t.Helper()
	s, err := w.Status(on, 0)
	if err != nil || len(s.GPUs) != 1 || s.GPUs[0].UUID != on.UUIDs()[0] {
		p.t.Fatalf("the work is on %+v, want %v: %v", s.GPUs, on.UUIDs(), err)
	}
}

func TestEachHostHasItsOwn(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := New(t, Options{})
		for _, command := range []string{
			"hostname", "cat /proc/sys/kernel/random/boot_id", "cat /etc/machine-id", "ip -brief address show eth0",
			"readlink /proc/self/ns/net", "readlink /proc/self/ns/ipc", "echo $$", "cat /run/nvidia/proc/driver/nvidia/gpus/*/information",
		} {
			if a, b := p.A.Run("sh", "-c", command), p.B.Run("sh", "-c", command); a == b || a == "" {
				t.Errorf("%s says %q on host a and %q on host b", command, a, b)
			}
		}
		for _, dir := range []string{"/tmp", "/run", "/dev/shm", p.A.home} {
			name := filepath.Join(dir, "only-here")
			p.A.Run("touch", name)
			if out, err := p.B.Try("ls", name); err == nil {
				t.Errorf("host b sees host a's %s", out)
			}
			if !testenv.Exists(p.A.Path(name)) || testenv.Exists(name) {
				t.Errorf("the test does not find %s where it must", name)
			}
		}
		shared := filepath.Join(t.TempDir(), "shared")
		p.A.Run("touch", shared)
		p.B.Run("ls", shared)
	})
}

func TestAHostCanHaveBeenUpForLonger(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := New(t, Options{B: HostOptions{Clock: 50 * time.Hour}})
		uptime := func(out string) float64 {
			var seconds float64
			if _, err := fmt.Sscan(out, &seconds); err != nil {
				t.Fatal(err)
			}
			return seconds
		}
		a, b := uptime(p.A.Run("cat", "/proc/uptime")), uptime(p.A.Run("ssh", "b", "cat", "/proc/uptime"))
		if ahead := b - a; ahead < 50*3600 || ahead > 50*3600+60 {
			t.Fatalf("host b is ahead by %.0f seconds, want %d", ahead, 50*3600)
		}
	})
}

func TestAHostLosesItsPower(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := New(t, Options{})
		w := p.A.Start(1, "--mib", "1")
		boot := "/proc/sys/kernel/random/boot_id"
		before := p.A.Run("cat", boot)
		p.A.Run("touch", "/run/in-memory", "/tmp/on-disk")
		p.A.PowerOff()
		if left := p.A.Processes(); len(left) != 0 || len(w.Copies()) != 0 {
			t.Fatalf("without power there run %v", left)
		}
		p.A.Boot()
		if p.A.Run("cat", boot) == before {
			t.Error("it has the same boot id after it booted")
		}
		p.A.Run("ls", "/tmp/on-disk")
		if _, err := p.A.Try("ls", "/run/in-memory"); err == nil {
			t.Error("what was in memory is still there")
		}
		p.B.Run("ssh", "a", "true")
		p.A.Run("ssh", "b", "true")
		p.A.Start(1, "--mib", "1")
	})
}

func TestTwoCopiesAreSeen(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := New(t, Options{})
		w := p.A.Start(1, "--mib", "1")
		w.Is(p.A)
		for again := true; again; again = testenv.CaughtWriting(t, p.A.Path("/tmp/images")) {
			p.A.Run("rm", "-rf", "/tmp/images")
			p.A.Run("cucriu", "dump", "-t", w.Root(), "-D", "/tmp/images", "--leave-running")
		}
		p.A.Run("sh", "-c", "tar -C /tmp -c images | ssh b tar -C /tmp -x")
		watch := w.Watch()
		p.A.Run("kill", "-STOP", w.Root())
		testenv.Eventually(t, testenv.Soon, "it is stopped", func() bool {
			copies := w.Copies()
			return len(copies) == 1 && copies[0].Held() != ""
		})
		w.Carry(p.B) // which would miss files that it writes at that moment
		p.B.Run("cucriu", "restore", "-D", "/tmp/images")
		w.WaitTicks(p.B, 20)
		testenv.Eventually(t, testenv.Soon, "one copy is stopped and one runs", func() bool { // one that creates a thread looks parked
			copies := w.Copies()
			return len(copies) == 2 && copies[0].Held() != "" && copies[1].Held() == ""
		})
		if n := watch.Twice(); n != 0 {
			t.Fatalf("the watch has seen two copies that run, %d times", n)
		}
		p.A.Run("kill", "-CONT", w.Root())
		testenv.Eventually(t, testenv.Soon, "the watch sees two copies", func() bool { return watch.Twice() > 0 })
	})
}
