package run

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// world is a simulated host with a long job. All processes of its pid namespace are the test's.
type world struct {
	t       *testing.T
	host    *testenv.Host
	dir     string // D
	work    string // the folder of the job's files
	cuda    string // that of its CUDA process; empty if it has none
	command []string
	flags   []string
	runs    []*run

	processes []int // of the test itself
	mounts    string
}

// newWorld makes a world for the job that this program can be.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := emptyWorld(t)
	w.host.Setenv(jobVariable, w.work)
	w.command = []string{"/proc/self/exe"}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w.command[0] = self
	return w
}

// newMixedWorld makes a world for that job with a child that uses CUDA.
func newMixedWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.host.Setenv(cudaVariable, testenv.Artefact(t, "make workload", "build", "workload", "cudawork"))
	w.cuda = filepath.Join(w.work, "cuda")
	return w
}

// newCUDAWorld makes a world for a job that uses CUDA.
func newCUDAWorld(t *testing.T, args ...string) *world {
	t.Helper()
	w := emptyWorld(t)
	w.command = append([]string{testenv.Artefact(t, "make workload", "build", "workload", "cudawork"), "--dir", w.work, "--mib", "1"}, args...)
	w.cuda = w.work
	return w
}

func emptyWorld(t *testing.T) *world {
	t.Helper()
	return worldOn(t, testenv.NewHost(t, 1))
}

func worldOn(t *testing.T, host *testenv.Host) *world {
	t.Helper()
	w := &world{t: t, host: host, dir: filepath.Join(t.TempDir(), "D"), work: t.TempDir(), flags: []string{"--every", "1s"}}
	w.host.HookBin = testenv.Artefact(t, "make build", "build", "test", "cucriu-hook")
	w.processes, w.mounts = testenv.PIDs(), mounts(t)
	t.Cleanup(w.end)
	return w
}

// end ends what is left of a test that has failed.
func (w *world) end() {
	for _, r := range w.runs {
		_ = r.cmd.Process.Kill()
		<-r.done
		if w.t.Failed() {
			w.t.Logf("cucriu run %v (%v):\n%s", r.flags, r.cmd.ProcessState, r.said())
			if _, log, found := strings.Cut(r.said(), "its log: "); found {
				log, _, _ = strings.Cut(log, "\n")
				data, err := os.ReadFile(log)
				w.t.Logf("%s: %v\n%s", log, err, data[max(0, len(data)-4096):])
			}
		}
	}
	if place := w.place(); place != nil {
		_ = unix.Kill(place.Init.PID, unix.SIGKILL)
		// What still ends may write into a folder that is removed next.
		testenv.Eventually(w.t, testenv.Soon, "the sandbox has ended", func() bool { return !testenv.JobOf(w.t, place.Init.PID).Alive() })
	}
}

// once are flags by which a supervisor that makes checkpoints every second makes one, and the next one
// much later: what is killed then is killed between two.
var once = []string{"--overhead", "0.001%"}

// run is a supervisor.
type run struct {
	w        *world
	flags    []string
	cmd      *exec.Cmd
	out, err string // the files with its output
	had      int    // the number of the newest checkpoint when it was started
	done     chan struct{}
	last     unix.Signal // that was sent
	lastAt   time.Time
}

// run starts a supervisor for the job.
func (w *world) run(flags ...string) *run {
	w.t.Helper()
	return w.runAs(w.host, flags...)
}

func (w *world) runAs(host *testenv.Host, flags ...string) *run {
	w.t.Helper()
	flags = slices.Concat(w.flags, flags)
	args := append(append([]string{"run", "--dir", w.dir}, flags...), "--")
	return w.start(host.CucriuCommand(append(args, w.command...)...), flags)
}

func (w *world) start(cmd *exec.Cmd, flags []string) *run {
	w.t.Helper()
	base := filepath.Join(w.t.TempDir(), "run")
	r := &run{w: w, flags: flags, cmd: cmd, out: base + ".out", err: base + ".err", done: make(chan struct{})}
	r.cmd.Cancel = func() error { return nil } // the end of the test's context is no end of the job
	if r.cmd.Stdout == nil {
		r.cmd.Stdout = create(w.t, r.out)
	}
	if r.cmd.Stderr == nil {
		r.cmd.Stderr = create(w.t, r.err)
	}
	r.had = w.newestNumber()
	if err := r.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		defer close(r.done)
		_ = r.cmd.Wait()
	}()
	w.runs = append(w.runs, r)
	return r
}

func create(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func (r *run) said() string {
	data, _ := os.ReadFile(r.err)
	return string(data)
}

// says waits until the supervisor says something.
func (r *run) says(text string) {
	r.w.t.Helper()
	r.awaits("it says "+strconv.Quote(text), func() bool { return strings.Contains(r.said(), text) })
}

// awaits waits for something while the supervisor runs.
func (r *run) awaits(what string, condition func() bool) {
	r.w.t.Helper()
	testenv.Eventually(r.w.t, 3*testenv.Soon, what, func() bool {
		select {
		case <-r.done:
			if condition() {
				return true
			}
			r.w.t.Fatalf("cucriu run ended (%v) before %s", r.cmd.ProcessState, what)
		default:
		}
		return condition()
	})
}

// ends waits for the end of the supervisor, and fails the test unless it has this status and
// has said this.
func (r *run) ends(status int, says ...string) {
	r.w.t.Helper()
	select {
	case <-r.done:
	case <-time.After(3 * testenv.Soon):
		r.w.t.Fatal("cucriu run does not end")
	}
	if code := r.cmd.ProcessState.ExitCode(); code != status {
		r.w.t.Fatalf("cucriu run: %v, want exit status %d", r.cmd.ProcessState, status)
	}
	for _, text := range says {
		if !strings.Contains(r.said(), text) {
			r.w.t.Errorf("it did not say %q", text)
		}
	}
}

// signal sends a signal. A repetition of one is sent when it is no longer taken for the same request.
func (r *run) signal(sig unix.Signal) {
	r.w.t.Helper()
	if sig == r.last {
		time.Sleep(time.Until(r.lastAt.Add(2500 * time.Millisecond)))
	}
	r.last, r.lastAt = sig, time.Now()
	if err := r.cmd.Process.Signal(sig); err != nil {
		r.w.t.Fatal(err)
	}
}

// kill kills the supervisor, and nothing else.
func (r *run) kill() {
	_ = r.cmd.Process.Kill()
	<-r.done
}

// ticks waits until the job has ticked on, and fails the test if it has seen anything wrong.
func (w *world) ticks(n int) {
	w.t.Helper()
	from := w.report().Tick
	testenv.Eventually(w.t, 3*testenv.Soon, fmt.Sprintf("the job ticks on from %d", from), func() bool {
		now := w.report().Tick
		from = min(from, now)
		return now >= from+n
	})
	w.intact()
}

// intact fails the test if the job has seen anything wrong.
func (w *world) intact() {
	w.t.Helper()
	if r := w.report(); r.Bad != 0 {
		w.t.Fatalf("the job found something wrong: %+v", r)
	}
}

func (w *world) report() report {
	var r report
	data, err := os.ReadFile(filepath.Join(w.work, "status"))
	if err == nil {
		_ = json.Unmarshal(data, &r)
	}
	return r
}

// checks makes a CUDA job compare all its memory.
func (w *world) checks() {
	w.t.Helper()
	var place *placeRecord // it is written when the job runs already, and may still be that of a sandbox before
	testenv.Eventually(w.t, testenv.Soon, "the job's sandbox is on record", func() bool {
		if place = w.place(); place == nil {
			return false
		}
		tree, err := proc.Tree(place.Init.PID)
		return err == nil && len(tree) > 1
	})
	job := testenv.JobOf(w.t, place.Init.PID)
	job.Dirs = []string{w.cuda}
	job.WaitTicks(3)
	job.Check()
	held := ""
	defer func() {
		if held != "" {
			w.t.Log(held)
		}
	}()
	testenv.Eventually(w.t, testenv.Soon, "no thread of the job is stopped", func() bool { // a checkpoint may stop them for a while
		tree, err := proc.Tree(place.Init.PID)
		if err != nil {
			held = err.Error()
			return false
		}
		held = ""
		for _, pid := range tree {
			if !isOurs(pid) && held == "" {
				held = testenv.HeldThread(pid)
			}
		}
		return held == ""
	})
}

// stop has the job end with a status.
func (w *world) stop(status int) {
	w.t.Helper()
	file := filepath.Join(w.work, "stop")
	testenv.WriteFile(w.t, file+".new", strconv.Itoa(status))
	if err := os.Rename(file+".new", file); err != nil {
		w.t.Fatal(err)
	}
}

// placeRecord is what D says of the place.
type placeRecord struct {
	BootID string `json:"boot_id"`
	Init   struct {
		PID int `json:"pid"`
	} `json:"init"`
	Root    int  `json:"root"`
	Leaving bool `json:"leaving"`
}

func (w *world) placeFiles() []string {
	files, _ := filepath.Glob(filepath.Join(w.dir, "place-*", "place.json"))
	return files
}

// place returns the record of the place, nil if there is none.
func (w *world) place() *placeRecord {
	for _, file := range w.placeFiles() {
		var p placeRecord
		data, err := os.ReadFile(file)
		if err == nil && json.Unmarshal(data, &p) == nil {
			return &p
		}
	}
	return nil
}

// checkpoints lists the names of the checkpoints, the oldest first.
func (w *world) checkpoints() []string {
	dirs, _ := filepath.Glob(filepath.Join(w.dir, "checkpoints", "[0-9]*"))
	for i, dir := range dirs {
		dirs[i] = filepath.Base(dir)
	}
	return dirs
}

// newest returns the name of the newest checkpoint, "" if there is none.
func (w *world) newest() string {
	all := w.checkpoints()
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1]
}

// newestNumber returns the number of the newest checkpoint, 0 if there is none.
func (w *world) newestNumber() int {
	last, _ := strconv.Atoi(w.newest())
	return last
}

// verified waits until there are n checkpoints more, and the last one has been read again.
func (r *run) verified(n int) {
	r.w.t.Helper()
	want := r.w.newestNumber() + n
	if slices.Contains(r.flags, once[0]) { // it may have made it by now, and makes the next one much later
		want = r.had + n
	}
	r.awaits(fmt.Sprintf("there is checkpoint %d", want), func() bool {
		return r.w.newestNumber() >= want && testenv.Exists(filepath.Join(r.w.dir, "checkpoints", r.w.newest(), "verified.json"))
	})
}

// events reads the log of the job.
func (w *world) events() []jobs.Event {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(w.dir, "events.jsonl"))
	if err != nil {
		w.t.Fatal(err)
	}
	var all []jobs.Event
	for text := range strings.Lines(string(data)) {
		if !strings.HasSuffix(text, "\n") {
			break // it is being written
		}
		var e jobs.Event
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			w.t.Fatalf("events.jsonl: %q: %v", text, err)
		}
		all = append(all, e)
	}
	return all
}

func (w *world) last(kind string) (jobs.Event, bool) {
	for _, e := range slices.Backward(w.events()) {
		if e.Event == kind {
			return e, true
		}
	}
	return jobs.Event{}, false
}

// goesOn starts the same command again, and fails the test unless the job goes on from this
// checkpoint.
func (w *world) goesOn(from string) *run {
	w.t.Helper()
	r := w.run()
	r.resumed(from)
	return r
}

// resumed waits until the job goes on from a checkpoint, with nothing lost.
func (r *run) resumed(from string) {
	r.w.t.Helper()
	r.says("D resumes from checkpoint " + from)
	r.w.ticks(3)
}

// finish ends the job with status 0, and fails the test if anything is left over.
func (w *world) finish(r *run) {
	w.t.Helper()
	w.ticks(1)
	w.stop(0)
	r.ends(0)
	w.nothingLeft()
}

// nothingLeft fails the test unless everything is gone that is not to stay in D.
func (w *world) nothingLeft() {
	w.t.Helper()
	w.noProcesses()
	for _, pattern := range []string{"staged/*", "checkpoints/.*", "place-*", ".*"} {
		if files, _ := filepath.Glob(filepath.Join(w.dir, pattern)); len(files) > 0 {
			w.t.Errorf("left over: %v", files)
		}
	}
}

// noProcesses fails the test unless all processes and mounts of the job and of ours are gone.
func (w *world) noProcesses() {
	w.t.Helper()
	var left []string
	for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		left = nil
		for _, pid := range testenv.PIDs() {
			if !slices.Contains(w.processes, pid) {
				left = append(left, fmt.Sprintf("%d %s", pid, testenv.ProcessName(pid)))
			}
		}
		if len(left) == 0 {
			break
		}
		if time.Since(begin) > testenv.Soon {
			w.t.Fatalf("processes are left over: %v", left)
		}
	}
	for mount := range strings.Lines(mounts(w.t)) {
		if !strings.Contains(w.mounts, mount) {
			w.t.Errorf("a mount is left over: %s", mount)
		}
	}
}

func mounts(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
