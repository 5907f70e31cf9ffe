package jobs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// TestAJobFindsItsSignalsAsAProgramExpects: none is ignored or blocked, although the programs that
// make its place are deaf to some.
func TestAJobFindsItsSignalsAsAProgramExpects(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		self, err := proc.ReadStatus(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		host := testenv.NewHost(t, 1)
		out, err := host.CucriuCommand("run", "--dir", filepath.Join(t.TempDir(), "D"), "--every", "0", "--", "grep", "-E", "^Sig(Ign|Blk):", "/proc/self/status").Output()
		if err != nil {
			t.Fatal(err)
		}
		var blocked, ignored proc.SignalSet
		if n, err := fmt.Sscanf(string(out), "SigBlk: %x\nSigIgn: %x\n", &blocked, &ignored); n != 2 {
			t.Fatalf("%q: %v", out, err)
		}
		if ignored &^= self.Ignored; blocked != 0 || ignored != 0 {
			t.Errorf("blocked: %x, ignored beside those that are ignored here: %x", uint64(blocked), uint64(ignored))
		}
	})
}

// TestCtrlCEndsALongJob, as it ends any program.
func TestCtrlCEndsALongJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		a := &asked{Host: testenv.NewHost(t, 1), t: t, dir: filepath.Join(t.TempDir(), "D"), command: []string{"sleep", "1000"}}
		a.run()
		if err := a.super.Process.Signal(unix.SIGINT); err != nil {
			t.Fatal(err)
		}
		a.ends(128 + int(unix.SIGINT))
		a.is("ended")
	})
}
