package migrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/core/journal"
	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

// world is two hosts and a job that is moved from one to the other and back, while something
// goes wrong each time.
type world struct {
	*hosts.Pair
	t        *testing.T // of the hosts
	start    func() *hosts.Job
	work     *hosts.Job
	watch    *hosts.Watch
	from, to *hosts.Host
	flags    []string // of cucriu migrate
	dir      string
	hog      *hosts.Job // in the way
	soaks    bool       // a busy machine may end a migration before its point
}

func newWorld(t *testing.T, job string) *world {
	t.Helper()
	small := hosts.HostOptions{Simulator: []string{"--mib-per-gpu", "64"}}
	w := &world{t: t, dir: t.TempDir(), Pair: hosts.New(t, hosts.Options{A: small, B: small})}
	criu := testenv.Script(t, fmt.Sprintf("[ \"$1\" = swrk ] && [ -e %s ] && exit 1\nexec %s \"$@\"", w.broken(), testenv.Criu(t)))
	for _, h := range w.Hosts() {
		h.Setenv("CUCRIU_CRIU", criu)
	}
	w.start = func() *hosts.Job {
		switch job {
		case "cpu":
			return w.A.StartProgram("sh", "-c", cpuProgram, "sh")
		case "memory":
			w.flags = []string{"--precopy"}
			return w.A.StartProgram("python3", "-c", remembers)
		case "precopy":
			w.flags = []string{"--precopy"}
		case "tree":
			return w.A.Start(2, "--procs", "2", "--mib", "2", "--loaders", "2")
		}
		return w.A.Start(1, "--mib", "8", "--loaders", "1")
	}
	w.fresh()
	return w
}

// cpuProgram reports as cudawork does, and has a child.
const cpuProgram = `
	exec > /dev/null 2>&1
	while :; do sleep 0.2; done &
	n=0
	while :; do
		n=$((n + 1))
		echo "{\"tick\":$n,\"bad\":0}" > "$1/status.new" && mv "$1/status.new" "$1/status"
		if [ -e "$1/check" ]; then echo '{"bad":0,"words":1}' > "$1/checked" && rm "$1/check"; fi
		sleep 0.02
	done`

// fresh starts a new job on host a.
func (w *world) fresh() {
	w.t.Helper()
	if w.watch != nil {
		w.watch.Stop()
	}
	w.work = w.start()
	w.from, w.to = w.A, w.B
	w.watch = w.work.Watch()
}

// haste is how many times sooner than a user's the programs of the tests give up what is silent.
const haste = "2"

// hasten has cucriu give up sooner what is silent, or as soon as usual.
func (w *world) hasten(soon bool) {
	value := ""
	if soon {
		value = haste
	}
	for _, h := range w.Hosts() {
		h.Setenv("CUCRIU_FAILPOINT_HASTE", value)
	}
}

// migration is a cucriu migrate that runs.
type migration struct {
	t        *testing.T
	from, to *hosts.Host
	cmd      *exec.Cmd
	out      output
	ended    chan struct{}
	err      error
	marks    string
}

// output is a file with what a command prints. Who is not killed with it may keep it open, and nobody
// waits for that.
type output string

// String returns what was printed until now.
func (o output) String() string {
	text, _ := os.ReadFile(string(o))
	return string(text)
}

// begin begins to migrate the job. It goes wrong at a point, as actions say; if there are none,
// it waits there until [migration.goOn].
func (w *world) begin(t *testing.T, point, actions string, flags ...string) *migration {
	t.Helper()
	m := &migration{t: t, from: w.from, to: w.to, ended: make(chan struct{}), marks: w.t.TempDir()}
	if actions == "" {
		actions = "run " + testenv.WaitsForGo(w.t, m.marks)
	}
	for _, h := range w.Hosts() {
		h.Setenv("CUCRIU_FAILPOINT_MARKS", m.marks)
		h.UseFailpoint(point + "=" + actions)
	}
	m.start(w.work, slices.Concat(w.flags, flags)...)
	return m
}

func (m *migration) start(work *hosts.Job, flags ...string) {
	m.t.Helper()
	work.Prepare(m.to)
	m.cmd = m.from.Command(context.Background(), "cucriu", append([]string{"migrate", "-t", work.Root(), "--to", m.to.Name, "--copy-files", "changed"}, flags...)...)
	file, err := os.CreateTemp(m.t.TempDir(), "output-")
	if err != nil {
		m.t.Fatal(err)
	}
	defer file.Close()
	m.out, m.cmd.Stdout, m.cmd.Stderr = output(file.Name()), file, file
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as a shell starts it
	if err := m.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	go func() {
		defer close(m.ended)
		m.err = m.cmd.Wait()
	}()
	m.t.Cleanup(func() {
		if m.t.Failed() {
			m.t.Logf("cucriu migrate said:\n%s", m.out.String())
		}
	})
}

// reached waits until the migration waits at its point, and reports false if it ends before.
func (m *migration) reached() bool {
	m.t.Helper()
	for deadline := time.Now().Add(testenv.Soon); ; time.Sleep(2 * time.Millisecond) {
		if testenv.Exists(filepath.Join(m.marks, "reached")) {
			return true
		}
		select {
		case <-m.ended:
			return false
		default:
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("the migration does not come to its point")
		}
	}
}

func (m *migration) goOn() {
	m.t.Helper()
	testenv.WriteFile(m.t, filepath.Join(m.marks, "go"), "")
}

// status waits for the end of the command, and returns its exit status; -1 if it was killed.
func (m *migration) status() int {
	m.t.Helper()
	select {
	case <-m.ended:
	case <-time.After(2 * testenv.Soon):
		m.t.Errorf("cucriu migrate does not end")
		_ = m.cmd.Cancel()
		<-m.ended
	}
	var exit *exec.ExitError
	if m.err != nil && !errors.As(m.err, &exit) {
		m.t.Fatal(m.err)
	}
	if status := m.cmd.ProcessState.ExitCode(); status != 128+int(unix.SIGKILL) { // as nsenter says it
		return status
	}
	return -1
}

// find lists processes by their programs and arguments.
func find(h *hosts.Host, program string, args ...string) []hosts.Process {
	return slices.DeleteFunc(h.Find(args...), func(p hosts.Process) bool {
		return filepath.Base(strings.TrimSuffix(p.Args[0], ":")) != program && !strings.HasPrefix(p.Args[0], program+":")
	})
}

func migrates(h *hosts.Host) []hosts.Process { return find(h, "cucriu", "migrate", "-t") }
func receives(h *hosts.Host) []hosts.Process { return find(h, "cucriu", "receive") }
func crius(h *hosts.Host) []hosts.Process    { return find(h, "criu", "swrk") }
func watchers(h *hosts.Host) []hosts.Process {
	return slices.Concat(find(h, "cucriu", "watch", "/sessions/"), find(h, "cucriu-hook", "watch", "/sessions/"))
}
func clients(h *hosts.Host) []hosts.Process { return find(h, "ssh", "receive") }
func servers(h *hosts.Host) []hosts.Process {
	return slices.Concat(find(h, "sshd-session", "root@"), find(h, "sshd", "root@"))
}

// kill kills processes, and fails the test if there are none.
func kill(t *testing.T, what string, processes ...hosts.Process) {
	t.Helper()
	if len(processes) == 0 {
		t.Fatalf("there is no %s to kill", what)
	}
	for _, p := range processes {
		if err := p.Kill(); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Fatal(err)
		}
	}
}

// awaitEnd waits until processes are gone, and with them the locks that they hold.
func awaitEnd(t *testing.T, processes ...hosts.Process) {
	t.Helper()
	testenv.Eventually(t, testenv.Soon, "who was killed is gone", func() bool {
		return !slices.ContainsFunc(processes, func(p hosts.Process) bool { return testenv.Exists(fmt.Sprintf("/proc/%d", p.Outer)) })
	})
}

// left lists what a migration must not leave on a host.
func left(h *hosts.Host) []string {
	var found []string
	sessions, err := journal.List(h.RunDir)
	if err != nil {
		found = append(found, err.Error())
	}
	for _, s := range sessions {
		if s.Outcome == "" {
			found = append(found, fmt.Sprintf("session %s is open at step %s: %s", s.Name(), s.Step, s.Message))
		}
	}
	for _, pattern := range []string{"/dev/shm/cucriu-migration-*", "/run/cucriu/migrations/*"} {
		files, _ := filepath.Glob(h.Path(pattern))
		for _, file := range files {
			if !strings.HasSuffix(file, ".dropped") { // kept for a day
				found = append(found, file)
			}
		}
	}
	for _, p := range slices.Concat(migrates(h), receives(h), crius(h), watchers(h), clients(h), servers(h)) {
		found = append(found, fmt.Sprintf("process %d: %s", p.PID, strings.Join(p.Args, " ")))
	}
	for i := range found {
		found[i] = "host " + h.Name + ": " + found[i]
	}
	return found
}

// end brings both hosts to an end with cucriu recover, as often as that is needed, and fails the
// test unless the job then runs in exactly one place, which it returns. It returns nil if there
// is no copy at all.
func (w *world) end(t *testing.T) *hosts.Host {
	t.Helper()
	var said string
	var found []string
	var copies []hosts.Process
	begin := time.Now()
	for tries := 1; ; tries++ {
		for _, h := range []*hosts.Host{w.from, w.to} {
			out, err := h.Command(context.Background(), "cucriu", "recover").CombinedOutput()
			said += fmt.Sprintf("cucriu recover on host %s: %v\n%s", h.Name, err, out)
		}
		for until := time.Now().Add(time.Second); ; time.Sleep(10 * time.Millisecond) {
			found, copies = slices.Concat(left(w.A), left(w.B)), w.work.Copies()
			if len(found) == 0 && (len(copies) == 0 || len(copies) == 1 && copies[0].Held() == "") {
				if tries > 1 {
					t.Logf("cucriu recover was needed %d times:\n%s", tries, said)
				}
				if len(copies) == 0 {
					return nil
				}
				return copies[0].Host
			}
			if time.Now().After(until) {
				break
			}
		}
		if time.Since(begin) > 3*testenv.Soon { // after a cut, TCP may wait for a minute before it tries again
			t.Fatalf("the migration has not come to an end: copies %v, left %s\n%s", copies, strings.Join(found, "\n"), said)
		}
	}
}

// is checks the job on a host, from where the next migration will begin.
func (w *world) is(on *hosts.Host) {
	w.t.Helper()
	w.work.Is(on)
	if on != w.from {
		w.from, w.to = w.to, w.from
	}
}

// held returns the name of the migration whose copy a host holds.
func held(t *testing.T, h *hosts.Host) string {
	t.Helper()
	sessions, err := journal.List(h.RunDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sessions {
		if s.Held() {
			return s.Hold.ID
		}
	}
	return ""
}
