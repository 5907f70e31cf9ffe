package hosts

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"cucriu/internal/testenv"
)

// workVariable marks the processes of a [Job], wherever they are. What is restored has it
// as well.
const workVariable = "CUCRIU_TEST_WORK"

// Job is one that may be on either host. It says in files of its directory, which has the
// same name on both hosts, what it does, and whether it has seen anything wrong.
type Job struct {
	pair *Pair
	id   string
	Host *Host  // where it was started, or has been seen by [Job.Is]
	PID  int    // of the root, on the host; the same after a restore
	Dir  string // below /tmp, so each host has its own, unless [Options] say shared
	// Dirs are the directories to which the processes report.
	Dirs []string
}

// Start starts cudawork on a host and waits until it ticks. For several processes, args must
// have --procs or --ranks with the same number.
func (h *Host) Start(processes int, args ...string) *Job {
	h.pair.t.Helper()
	return h.StartUnder(nil, processes, args...)
}

// StartUnder is [Host.Start] with a program that starts cudawork.
func (h *Host) StartUnder(parent []string, processes int, args ...string) *Job {
	h.pair.t.Helper()
	w := h.newJob()
	program := testenv.Artefact(h.pair.t, "make workload", "build", "workload", "cudawork")
	if processes > 1 {
		w.Dirs = nil
		for i := range processes {
			w.Dirs = append(w.Dirs, filepath.Join(w.Dir, "rank-"+strconv.Itoa(i)))
		}
	}
	command := slices.Concat(parent, []string{program, "--dir", w.Dir}, args)
	w.start(command[0], command[1:]...)
	w.WaitTicks(h, 3)
	return w
}

// StartProgram starts any program on a host, for example one without CUDA. It gets the name
// of the work's directory as its last argument, and should report there as cudawork does:
// {"tick":N,"bad":0} in "status", replaced by rename.
func (h *Host) StartProgram(name string, args ...string) *Job {
	h.pair.t.Helper()
	w := h.newJob()
	w.start(name, append(slices.Clone(args), w.Dir)...)
	return w
}

// ForeignJob is a job that the test starts by itself, such as a container: cudawork with one
// process, which reports to a directory below /tmp and has the variable in its environment.
func (h *Host) ForeignJob(dir string) (w *Job, variable string) {
	w = h.newJob()
	w.Dir, w.Dirs = dir, []string{dir}
	return w, workVariable + "=" + w.id
}

func (h *Host) newJob() *Job {
	id := newUUID()
	dir := filepath.Join(tmpDir, "work-"+id[:8])
	if h.pair.options.SharedDir {
		dir = filepath.Join(h.pair.root.TempDir(), "work")
	}
	return &Job{pair: h.pair, id: id, Host: h, Dir: dir, Dirs: []string{dir}}
}

// start starts a program so that criu can dump it: in a session of its own, as a child of
// the host's first process, with standard streams that exist on the host.
func (w *Job) start(name string, args ...string) {
	t, h := w.pair.t, w.Host
	t.Helper()
	const script = `dir=$1; shift; mkdir -p "$dir" && cd / || exit; setsid "$@" </dev/null >"$dir/output" 2>&1 & echo $!`
	cmd := h.Command(t.Context(), "sh", append([]string{"-c", script, "sh", w.Dir, name}, args...)...)
	cmd.Env = append(cmd.Env, workVariable+"="+w.id)
	out, err := cmd.Output()
	if err == nil {
		w.PID, err = strconv.Atoi(strings.TrimSpace(string(out)))
	}
	if err != nil {
		t.Fatalf("start %s on host %s: %v", name, h.Name, err)
	}
	t.Cleanup(func() {
		for _, h := range w.pair.Hosts() {
			if data, _ := os.ReadFile(w.path(h, filepath.Join(w.Dir, "output"))); t.Failed() && len(data) > 0 {
				t.Logf("output of %s on host %s:\n%s", filepath.Base(name), h.Name, data)
			}
		}
	})
}

// path returns where the test finds a file of the work on a host, even after the host's end.
func (w *Job) path(on *Host, file string) string {
	if w.pair.options.SharedDir {
		return file
	}
	return on.path("tmp", strings.TrimPrefix(file, tmpDir))
}

// Carry makes the directory of the work on a host what it is on the one that the work has
// left, as a user would who moves it by hand. An image may have a file open that was about to
// be renamed, so this comes after the dump. Nothing is to be done for a shared directory.
func (w *Job) Carry(on *Host) {
	w.pair.t.Helper()
	if w.pair.options.SharedDir || on == w.Host {
		return
	}
	from, to := w.path(w.Host, w.Dir), w.path(on, w.Dir)
	if err := os.RemoveAll(to); err != nil {
		w.pair.t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		w.pair.t.Fatalf("copy the work's directory to host %s: %v\n%s", on.Name, err, out)
	}
}

// Prepare makes the directories of the work on a host before it comes, with an output of the
// size that criu wants. It does not bring a file that the work happens to have open when it is
// dumped, such as a status that it is replacing; a shared directory has it.
func (w *Job) Prepare(on *Host) {
	w.pair.t.Helper()
	if w.pair.options.SharedDir {
		return
	}
	for _, dir := range w.Dirs {
		if err := os.MkdirAll(w.path(on, dir), 0o755); err != nil {
			w.pair.t.Fatal(err)
		}
	}
	output := filepath.Join(w.Dir, "output")
	data, err := os.ReadFile(w.path(w.Host, output))
	if err == nil {
		err = os.WriteFile(w.path(on, output), data, 0o644)
	}
	if err != nil {
		w.pair.t.Fatal(err)
	}
}

// job returns the work as it reports on a host.
func (w *Job) job(on *Host) *testenv.Job {
	job := testenv.JobOf(w.pair.t, w.PID)
	for _, dir := range w.Dirs {
		job.Dirs = append(job.Dirs, w.path(on, dir))
	}
	return job
}

// Status returns what a process of the work last said on a host. In a shared directory, what
// it said on the other host's GPU is an error.
func (w *Job) Status(on *Host, rank int) (testenv.Status, error) {
	s, err := w.job(on).Status(rank)
	if err == nil && w.pair.options.SharedDir && len(s.GPUs) > 0 && !slices.Contains(on.UUIDs(), s.GPUs[0].UUID) {
		err = errors.New("it was said on the other host")
	}
	return s, err
}

// Tick returns the lowest tick that the processes have said on a host, -1 if one has said
// nothing there. It fails the test if one has seen anything wrong.
func (w *Job) Tick(on *Host) int {
	w.pair.t.Helper()
	lowest := -1
	for i := range w.Dirs {
		s, err := w.Status(on, i)
		if err != nil {
			return -1
		}
		if s.Bad != 0 {
			w.pair.t.Fatalf("process %d of the work on host %s saw wrong memory: %+v", i, on.Name, s)
		}
		if lowest < 0 || s.Tick < lowest {
			lowest = s.Tick
		}
	}
	return lowest
}

// WaitTicks waits until every process has gone on by n ticks on a host, with all memory right.
func (w *Job) WaitTicks(on *Host, n int) {
	w.pair.t.Helper()
	from := -1
	testenv.Eventually(w.pair.t, testenv.Soon, "the work says on host "+on.Name+" what it does", func() bool {
		from = w.Tick(on)
		return from >= 0
	})
	testenv.Eventually(w.pair.t, testenv.Soon, fmt.Sprintf("the work ticks on on host %s from %d", on.Name, from), func() bool {
		return w.Tick(on) >= from+n
	})
}

// Check makes every process compare all its GPU memory with what it must be.
func (w *Job) Check(on *Host) {
	w.pair.t.Helper()
	w.job(on).Check()
}

// Is fails the test unless the work is on this host, there only, and runs there with all its
// memory intact.
func (w *Job) Is(on *Host) {
	t := w.pair.t
	t.Helper()
	w.WaitTicks(on, 3)
	w.Check(on)
	var copies []Process
	// While the C library creates a thread or a process, that looks parked; and a killed copy may not have ended.
	for deadline := time.Now().Add(testenv.Soon); time.Now().Before(deadline); {
		copies = w.Copies()
		if len(copies) == 1 && copies[0].Host == on && copies[0].Held() == "" {
			w.Host = on
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("want one copy of the work, running on host %s; there are %v", on.Name, copies)
}

// All lists the processes of the work on a host.
func (w *Job) All(on *Host) []Process {
	return slices.DeleteFunc(on.Processes(), func(p Process) bool { return !p.has(workVariable + "=" + w.id) })
}

// Copies lists the roots of all copies of the work, those that are stopped as well.
func (w *Job) Copies() []Process {
	var copies []Process
	for _, h := range w.pair.Hosts() {
		own := w.All(h)
		for _, p := range own {
			if !slices.ContainsFunc(own, func(other Process) bool { return other.Outer == p.Parent }) {
				copies = append(copies, p)
			}
		}
	}
	return copies
}

// String says where a process is, what it is, and what holds it.
func (p Process) String() string {
	held := p.Held()
	if held == "" {
		held = "runs"
	}
	return fmt.Sprintf("%s on host %s, process %d: %s", filepath.Base(p.Args[0]), p.Host.Name, p.PID, held)
}

// Root returns the pid of the root as an argument of cucriu.
func (w *Job) Root() string { return strconv.Itoa(w.PID) }
