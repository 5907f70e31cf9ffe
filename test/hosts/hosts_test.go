package hosts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

func TestMain(m *testing.M) { Main(m) }

// TestAJobMovesByHand: dumped on one host, copied by scp, restored on the other one.
func TestAJobMovesByHand(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := New(t, Options{})
		w := p.A.Start(1, "--mib", "8", "--loaders", "2")
		for _, way := range [][2]*Host{{p.A, p.B}, {p.B, p.A}} {
			from, to := way[0], way[1]
			w.Is(from)
			from.Run("cucriu", "dump", "-t", w.Root(), "-D", "/tmp/images")
			if copies := w.Copies(); len(copies) != 0 {
				t.Fatalf("after the dump there are %v", copies)
			}
			w.Prepare(to)
			from.Run("scp", "-q", "-r", "-S", from.SSHArgs()[0], "/tmp/images", to.Name+":/tmp/images")
			from.Run("ssh", to.Name, "cucriu", "restore", "-D", "/tmp/images")
			w.Is(to)
			p.wantGPU(w, to)
			from.Run("rm", "-r", "/tmp/images")
			to.Run("rm", "-r", "/tmp/images")
		}
	})
}

// wantGPU fails the test unless the work is on a GPU of this host.
func (p *Pair) wantGPU(w *Work, on *Host) {
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
		for _, dir := range []string{"/tmp", "/run", "/dev/shm", "/root"} {
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

func TestRemoteCommandsHaveTheHostsEnvironment(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := New(t, Options{})
		p.B.Setenv("SET_LATER", "by the test")
		out := p.A.Run("ssh", "b", `hostname; echo $CUDASIM_ROOT $CUCRIU_RUN_DIR "$SET_LATER"; echo $PPID >/dev/null; command -v cucriu`)
		want := "b\n/run/nvidia /run/cucriu by the test\n" + filepath.Join(filepath.Dir(p.B.HookBin), "cucriu") + "\n"
		if out != want {
			t.Fatalf("it said %q, want %q", out, want)
		}
		if strings.Contains(out, os.Getenv("TMPDIR")+"/") {
			t.Fatal("a remote command has the test's own environment")
		}
	})
}
