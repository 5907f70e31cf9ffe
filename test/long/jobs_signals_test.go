package long

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// TestAJobFindsItsSignalsAsAProgramExpects: none is ignored or blocked, although the programs that
// make its place are deaf to some.
func TestAJobFindsItsSignalsAsAProgramExpects(t *testing.T) {
	simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		out, err := host.Cucriu("run", "--dir", filepath.Join(t.TempDir(), "D"), "--every", "0", "--", "grep", "-E", "^Sig(Ign|Blk):", "/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		for _, line := range lines {
			if _, set, _ := strings.Cut(line, ":\t"); strings.Trim(set, "0") != "" {
				t.Errorf("the job has %q", line)
			}
		}
		if len(lines) != 2 {
			t.Errorf("signals: %q", out)
		}
	})
}

// TestCtrlCEndsALongJob, as it ends any program.
func TestCtrlCEndsALongJob(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := &asked{Host: testenv.NewHost(t, 1), t: t, dir: filepath.Join(t.TempDir(), "D"), command: []string{"sleep", "1000"}}
		a.run()
		if err := a.super.Process.Signal(unix.SIGINT); err != nil {
			t.Fatal(err)
		}
		a.ends(128 + int(unix.SIGINT))
		a.is("ended")
	})
}
