package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/core/journal"
	"cucriu/internal/testenv"
)

// neighbours are two more jobs on the host, one without CUDA and one with CUDA on a GPU of
// its own, and a script that dumps both and leaves them running. The hook of such a dump
// first looks after every session of the host. It has short time limits.
type neighbours struct {
	cpu    *testenv.Job
	cuda   *testenv.Job
	script string
	images string
	failed string // the file with what went wrong
}

func newNeighbours(t *testing.T, host *testenv.Host) *neighbours {
	t.Helper()
	dir := t.TempDir()
	n := &neighbours{images: filepath.Join(dir, "images"), failed: filepath.Join(dir, "failed")}
	n.cpu = testenv.JobOf(t, host.Spawn(dir, "/bin/sleep", "1000"))
	// Under another name, because the test finds the processes of the job by their name.
	program := filepath.Join(dir, "neighbour")
	data, err := os.ReadFile(testenv.Artefact(t, "make workload", "build", "workload", "cudawork"))
	if err == nil {
		err = os.WriteFile(program, data, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	n.cuda = host.StartProgram(program, 1, "--gpus", "1", "--mib", "1", "--tick-ms", "20")
	config := host.Config("version: 1\nlock: {timeout: 20s, try: 1s}\n")
	n.script = testenv.Script(t, fmt.Sprintf(`exec </dev/null >>%[1]s.log 2>&1
export CUCRIU_FAILPOINT= CUCRIU_CONFIG=%[2]s
for pid in %[3]d %[4]d; do
	rm -rf %[5]s && mkdir -p %[5]s
	%[6]s dump --no-default-config -t $pid -D %[5]s -o log -R --action-script %[7]s || { echo "dump of $pid: $?"; grep -e Error -e cucriu %[5]s/log; } >>%[1]s
done`, n.failed, config, n.cpu.PID, n.cuda.PID, n.images, testenv.Criu(t), host.HookBin))
	return n
}

// owns reports whether a session belongs to a neighbour.
func (n *neighbours) owns(s *journal.Session) bool {
	return n != nil && s.ImageDir == n.images
}

// check fails the test if a dump of a neighbour has failed, or if a neighbour does not run.
func (n *neighbours) check(t *testing.T) {
	t.Helper()
	if n == nil {
		return
	}
	if said, err := os.ReadFile(n.failed); err == nil {
		t.Errorf("the other dump: %s", said)
		os.Remove(n.failed)
	}
	if !n.cpu.Alive() || strings.ContainsAny(n.cpu.State(), "Tt") {
		t.Errorf("the job without CUDA is in state %q", n.cpu.State())
	}
	n.cuda.For(t, 1).Runs()
}

// free continues neighbours that a cell has left stopped.
func (n *neighbours) free() {
	if n != nil {
		_ = unix.Kill(n.cpu.PID, unix.SIGCONT)
		_ = unix.Kill(n.cuda.PID, unix.SIGCONT)
	}
}
