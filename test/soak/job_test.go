package soak

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/core/journal"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// job is dumped, restored, suspended and resumed, one after the other, while other jobs
// are, too.
type job struct {
	*soak
	name   string
	random *rand.Rand
	work   *testenv.Job
	status string // for the job without CUDA: the file with its counter
	pids   []int
	number int // of its image directories

	kills     atomic.Int64 // how many processes were killed that may have worked for it
	images    string       // the image of the job, if criu has ended the job
	suspended bool
	ticks     []int // how far it had come when it was last seen
}

func (j *job) cuda() bool { return j.status == "" }

// counter is a job without CUDA. It overwrites its file in place, always with the same
// number of bytes, so that criu finds the file as it was, whenever it dumps the job.
const counter = `data=$(printf 'x%.0s' {1..5000}); same=$data; mkfifo "$1.never"; exec 9<>"$1.never"
for ((i = 1; ; i++)); do
	[[ $data == "$same" ]] || exit 1
	printf '%020d' $i 1<>"$1"
	read -t 0.02 -u 9
done`

// start starts the job. With 0 processes that use CUDA, it starts the job without CUDA.
func (j *job) start(processes int, args []string) {
	j.t.Helper()
	if processes > 0 {
		var under []string
		if slices.Contains(served, j.name) {
			under = testenv.WithGuest(j.t)
		}
		j.work = j.host.StartUnder(under, processes, args...)
		j.pids = j.work.PIDs()
	} else {
		dir := j.t.TempDir()
		j.status = filepath.Join(dir, "status")
		j.work = testenv.JobOf(j.t, j.host.Spawn(dir, "/bin/bash", "-c", counter, "counter", j.status))
		j.pids = []int{j.work.PID}
	}
	j.runs(j.t)
}

// state is what became of the job.
type state string

const (
	runs    state = "runs"
	gone    state = "is gone"
	waiting state = "is suspended"
)

// act does one thing with the job, and checks the result against the promise.
func (j *job) act(t *testing.T) {
	t.Helper()
	switch n := j.random.IntN(10); {
	case j.images != "":
		j.restore(t)
	case j.suspended && n < 3:
		j.refused(t)
	case j.suspended:
		j.resume(t)
	case n < 4:
		j.dump(t, false)
	case n < 7 || !j.cuda():
		j.dump(t, true)
	case n < 9 && j.has("suspend"):
		j.suspend(t)
	default:
		j.recover(t)
		j.expect(t, runs)
	}
}

func (j *job) dump(t *testing.T, leaveRunning bool) {
	t.Helper()
	j.number++
	deed, images := "dump", filepath.Join(j.dir, fmt.Sprintf("%s-%06d", j.name, j.number))
	var args []string
	if leaveRunning {
		deed, args = "dump -R", []string{"-R"}
	}
	args = append(args, "-t", j.work.Root())
	var run result
	switch n := j.random.IntN(10); {
	case n < 5:
		run = j.do(t, deed, "cucriu", append([]string{"dump", "-D", images}, args...)...)
	case n < 9:
		run = j.do(t, deed, "criu", j.criu("dump", images, args...)...)
	default: // with a hook that is configured twice
		run = j.do(t, deed+", twice", "criu", j.criu("dump", images, append(args, "--action-script", j.host.HookBin)...)...)
	}
	now := j.settle(t, images)
	switch {
	case now == gone && leaveRunning:
		t.Fatalf("job %s is gone after %s\n%s", j.name, run, j.journals())
	case now == gone:
		if j.cuda() && j.lastOutcome(images) != journal.OutcomeDumped {
			t.Fatalf("job %s is gone after %s\n%s", j.name, run, j.journals())
		}
		j.images = images
		j.count("dump")
		return
	case now == runs && run.err == nil && !leaveRunning:
		t.Errorf("job %s runs after %s, which says that it was dumped", j.name, run)
	case run.err == nil && leaveRunning:
		j.count("dump -R")
	}
	j.expect(t, runs)
	if err := os.RemoveAll(images); err != nil {
		t.Error(err)
	}
}

func (j *job) restore(t *testing.T) {
	t.Helper()
	kills := j.kills.Load()
	var run result
	if j.random.IntN(2) == 0 {
		run = j.do(t, "restore", "cucriu", "restore", "-D", j.images)
	} else {
		run = j.do(t, "restore", "criu", j.criu("restore", j.images, "-d")...)
	}
	now := j.settle(t, j.images)
	undisturbed := j.kills.Load() == kills
	switch {
	case now == runs:
		j.expect(t, runs)
		j.count("restore")
		if err := os.RemoveAll(j.images); err != nil {
			t.Error(err)
		}
		j.images = ""
	case run.err == nil && (undisturbed || run.program == "cucriu"):
		t.Errorf("job %s is gone after %s", j.name, run)
	case undisturbed && !strings.Contains(run.said(), "File exists") && !strings.Contains(run.said(), "that the image needs"):
		t.Fatalf("job %s is not restored, and nobody was killed: %s\n%s", j.name, run, j.journals())
	}
}

func (j *job) suspend(t *testing.T) {
	t.Helper()
	run := j.do(t, "suspend", "cucriu", append([]string{"suspend"}, j.cudaPIDs()...)...)
	if run.err != nil {
		j.settle(t, "")
		j.expect(t, runs)
		return
	}
	j.suspended = true
	j.count("suspend")
}

// refused checks that a suspended job cannot be dumped.
func (j *job) refused(t *testing.T) {
	t.Helper()
	j.number++
	images := filepath.Join(j.dir, fmt.Sprintf("%s-%06d", j.name, j.number))
	if run := j.do(t, "dump of the suspended job", "criu", j.criu("dump", images, "-R", "-t", j.work.Root())...); run.err == nil {
		t.Errorf("job %s was suspended, and %s", j.name, run)
	}
}

func (j *job) resume(t *testing.T) {
	t.Helper()
	run := j.do(t, "resume", "cucriu", append([]string{"resume"}, j.cudaPIDs()...)...)
	j.suspended = false
	j.settle(t, "") // this tries again
	j.expect(t, runs)
	if run.err == nil {
		j.count("resume")
	}
}

func (j *job) recover(t *testing.T) {
	t.Helper()
	j.do(t, "recover", "cucriu", "recover")
}

// finish brings the job back while nothing is killed any more.
func (j *job) finish(t *testing.T) {
	t.Helper()
	if j.suspended {
		j.resume(t)
	}
	for try := 0; j.images != ""; try++ {
		if try == 5 {
			t.Fatalf("job %s does not come back from %s", j.name, j.images)
		}
		j.restore(t)
	}
	j.settle(t, "")
	j.expect(t, runs)
}

// settle waits until no process is at work on the job any more, runs cucriu recover as an
// operator would, and returns what became of the job.
func (j *job) settle(t *testing.T, images string) state {
	t.Helper()
	sawIt, begun := false, time.Now()
	for {
		sessions := j.open()
		suspended := slices.ContainsFunc(sessions, func(s *journal.Session) bool { return s.Kind == journal.KindSuspend && s.Step == "suspended" })
		switch {
		case suspended:
			j.do(t, "resume", "cucriu", append([]string{"resume"}, j.cudaPIDs()...)...)
		case len(sessions) > 0 && time.Since(begun) > 500*time.Millisecond:
			j.recover(t)
		case len(sessions) == 0 && len(atWork(images)) == 0:
			switch alive := j.alive(); len(alive) {
			case len(j.pids):
				if sawIt { // seen twice: a process that criu has just killed may still be ending
					return runs
				}
				sawIt = true
			case 0:
				return gone
			default:
				if time.Since(begun) > testenv.Soon {
					t.Fatalf("of job %s only processes %v of %v are there", j.name, alive, j.pids)
				}
			}
		}
		if time.Since(begun) > 3*testenv.Soon {
			t.Fatalf("nobody brings job %s to an end; at work: %v\n%s", j.name, atWork(images), j.journals())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// expect fails the test unless the job is as it should be.
func (j *job) expect(t *testing.T, want state) {
	t.Helper()
	if alive := j.alive(); len(alive) != len(j.pids) {
		t.Fatalf("job %s: processes %v of %v are there, want that it %s\n%s", j.name, alive, j.pids, want, j.journals())
	}
	j.runs(t)
}

// runs fails the test unless the job goes on from where it was, intact, and with no thread
// held.
func (j *job) runs(t *testing.T) {
	t.Helper()
	before := j.ticks
	if j.cuda() {
		work := j.work.For(t, len(j.work.Dirs))
		work.Runs()
		j.ticks = work.Ticks()
	} else {
		from := j.count0()
		testenv.Eventually(t, testenv.Soon, "the job without CUDA counts on", func() bool { return j.count0() > from+1 })
		j.ticks = []int{j.count0()}
	}
	for i, tick := range before {
		if j.ticks[i] < tick {
			t.Fatalf("process %d of job %s was at %d and is at %d: it has been set back", i, j.name, tick, j.ticks[i])
		}
	}
	if held := testenv.Held(t, j.driver, j.pids); held != "" {
		t.Fatalf("job %s: %s", j.name, held)
	}
}

// count0 returns how far the job without CUDA has counted.
func (j *job) count0() int {
	data, _ := os.ReadFile(j.status)
	n, _ := strconv.Atoi(strings.TrimLeft(string(data), "0"))
	return n
}

// alive lists the processes of the job that exist and are not ending.
func (j *job) alive() []int {
	program := "cudawork"
	if !j.cuda() {
		program = "bash"
	}
	there := slices.Concat(testenv.Running(program), testenv.Running("criu")) // what criu creates is criu at first
	return testenv.NotEnding(slices.DeleteFunc(there, func(pid int) bool { return !slices.Contains(j.pids, pid) }))
}

// open lists the open sessions of the job.
func (j *job) open() []*journal.Session {
	sessions, err := journal.List(j.host.RunDir)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(sessions, func(s *journal.Session) bool {
		return s.Outcome != "" || !j.owns(s)
	})
}

func (j *job) owns(s *journal.Session) bool {
	return strings.HasPrefix(filepath.Base(s.ImageDir), j.name+"-") ||
		slices.ContainsFunc(s.Members, func(m journal.Member) bool { return slices.Contains(j.pids, m.PID) })
}

// lastOutcome returns the outcome of the latest session that used an image directory.
func (j *job) lastOutcome(images string) journal.Outcome {
	sessions, _ := journal.List(j.host.RunDir)
	for _, s := range slices.Backward(sessions) {
		if filepath.Base(s.ImageDir) == filepath.Base(images) || s.PublishedDir == images {
			return s.Outcome
		}
	}
	return ""
}

// journals describes the latest sessions of the job.
func (j *job) journals() string {
	var text strings.Builder
	sessions, _ := journal.List(j.host.RunDir)
	for _, s := range slices.Backward(sessions) {
		if !j.owns(s) || text.Len() > 10000 {
			continue
		}
		log, _ := os.ReadFile(filepath.Join(j.host.RunDir, "sessions", s.Name(), "watcher.log"))
		fmt.Fprintf(&text, "session %s of %v: step %s, outcome %q: %s\n%s%s\n", s.Name(), s.Created, s.Step, s.Outcome, s.Message, s.Phases, log)
	}
	return text.String()
}

// atWork lists the criu processes that work in an image directory.
func atWork(images string) []int {
	if images == "" {
		return nil
	}
	return slices.DeleteFunc(testenv.Running("criu"), func(pid int) bool { return !worksIn(pid, images) })
}

// worksIn reports whether a criu has a directory open whose name begins with prefix.
func worksIn(criu int, prefix string) bool {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", criu))
	return slices.ContainsFunc(fds, func(fd string) bool {
		path, err := os.Readlink(fd)
		return err == nil && strings.HasPrefix(path, prefix)
	})
}

// cudaPIDs returns the processes with CUDA as arguments for cucriu.
func (j *job) cudaPIDs() []string {
	var args []string
	for i := range j.work.Dirs {
		args = append(args, "-p", strconv.Itoa(j.work.MustStatus(i).PID))
	}
	return args
}

func (j *job) criu(verb, images string, args ...string) []string {
	return append([]string{verb, "--no-default-config", "-D", images, "-o", verb + ".log", "-v4", "--action-script", j.host.HookBin}, args...)
}

// inCriusHands reports whether criu traces or creates a process of the job, or was killed during a dump
// or restore of it that nobody has recovered yet: its code may be in the job then.
func (j *job) inCriusHands() bool {
	sessions, err := journal.List(j.host.RunDir)
	left := err != nil || slices.ContainsFunc(sessions, func(s *journal.Session) bool {
		isOfJob := slices.ContainsFunc(s.Members, func(m journal.Member) bool { return slices.Contains(j.pids, m.PID) })
		return isOfJob && s.Outcome == "" && s.Kind != journal.KindSuspend && testenv.ProcessName(s.Criu.PID) != "criu"
	})
	return left || slices.ContainsFunc(j.pids, func(pid int) bool {
		status, err := proc.ReadStatus(pid)
		return err == nil && (testenv.ProcessName(status.TracerPID) == "criu" || testenv.ProcessName(pid) == "criu")
	})
}

// continueAll sends SIGCONT from outside.
func (j *job) continueAll() {
	for _, pid := range j.pids {
		_ = unix.Kill(pid, unix.SIGCONT)
	}
}
