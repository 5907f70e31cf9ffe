package programs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/testenv"
)

// The time limits of the steps.
const (
	toMidRun  = 3 * time.Minute // libraries are loaded, kernels compiled
	toCommand = 4 * time.Minute // a dump or a restore
	toEnd     = 4 * time.Minute // what is left of the run
	toSayDone = 30 * time.Second
	toForget  = 70 * time.Second // TIME_WAIT lasts a minute
)

// toLeave is the time limit for processes that have nothing left to do.
const toLeave = 30 * time.Second

// midRun is the number of steps after which a program is dumped: it is at work then, and has
// the larger part of its run before it.
const midRun = 20

// mayEnd is the file in its working directory by which a program of the harness's own hears
// that its dump is over. Until then it does not come to its end, however long the dump takes.
const mayEnd = "may-end"

// swap is the GPU map of every restore on a machine with several GPUs.
const swap = "version: 1\ngpus: {map: [{from: {index: 0}, to: {index: 1}}, {from: {index: 1}, to: {index: 0}}]}\n"

// measurement is one row of the table as it came out.
type measurement struct {
	program program
	evidence
	outcome     outcome
	why         string
	dumpTook    time.Duration
	restoreTook time.Duration
	image       int64  // bytes
	from, to    []int  // GPUs, as far as that is known
	movedBy     string // who has moved its GPU memory, if the library is in it
}

// measure takes a program through a dump and a restore and reports what became of it. It
// fails the test if that is not what is expected of it.
func (b *bench) measure(t *testing.T, p program) {
	if b.gpus < p.gpus {
		b.report.add(measurement{program: p, outcome: "-", why: fmt.Sprintf("needs %d GPUs, this machine has %d", p.gpus, b.gpus)})
		t.Skipf("needs %d GPUs, this machine has %d", p.gpus, b.gpus)
	}
	if p.greedy {
		defer place(b.greedy)()
	}
	defer place(b.programs)()
	m := measurement{program: p}
	b.observe(t, p, &m)
	m.outcome, m.why = judge(m.evidence)
	if m.outcome != works && m.outcome != notInstalled {
		t.Logf("cucriu dump: exit status %d\n%s\ncucriu restore: exit status %d\n%s", m.dumpStatus, m.dumpOutput, m.restoreStatus, m.restoreOutput)
		t.Log(criuLog(m.dumpOutput) + criuLog(m.restoreOutput))
	}
	if said := wrong(p, m.outcome, m.evidence); said != "" {
		t.Errorf("%s (%s)", said, m.why)
		m.why = strings.Trim(m.why+"; want "+strings.TrimSpace(string(p.want)+" "+p.finding), "; ")
	}
	if len(m.from) > 0 && len(m.to) > 0 && b.gpus > 1 && !slices.Equal(m.to, swapped(m.from)) {
		t.Errorf("it was on GPU %v and came back on %v, want %v", m.from, m.to, swapped(m.from))
	}
	b.report.add(m)
	if m.outcome == notInstalled {
		t.Skip("not installed: " + m.missing)
	}
}

// observe does it, and writes down what it sees.
func (b *bench) observe(t *testing.T, p program, m *measurement) {
	host := b.host.For(t)
	if !p.alone {
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nforce: [gpu-in-use]\n")) // by the undisturbed run
	}
	if p.hasGuest() {
		host.Setenv("CUCRIU_LOG", "info")
	}
	if p.underRun {
		if help, _ := host.Cucriu("run", "--help"); !strings.Contains(help, "--no-checkpoints") {
			m.unavailable = "this cucriu has no run --no-checkpoints"
			return
		}
	}
	var reference *run
	if !p.compares {
		reference = start(t, host, p) // beside the job: both load their libraries at the same time
		defer reference.kill()
	}
	if p.alone && reference != nil && !reference.runsToItsEnd(host, p) {
		m.neverRan = "the undisturbed run does not come to its end:\n" + reference.tail()
		return
	}
	job := start(t, host, p)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("what it printed:\n%s", job.tail())
		}
	})
	if reachesMidRun(host, p, job, reference, m); m.missing != "" || m.neverRan != "" {
		return
	}
	b.dump(t, host, job, m)
	for _, r := range []*run{job, reference} {
		if r != nil {
			r.mayEnd()
		}
	}
	if len(m.left) > 0 || m.dumpStatus == 0 && m.restoreStatus != 0 {
		return
	}
	if finish(job, m); m.unfinished == "" {
		compare(job, reference, m)
	}
}

// mayEnd says to a program of the harness's own that its dump is over.
func (r *run) mayEnd() {
	if err := os.WriteFile(filepath.Join(r.dir, mayEnd), nil, 0o600); err != nil {
		r.t.Error(err)
	}
}

// runsToItsEnd lets a program run undisturbed until it has ended.
func (r *run) runsToItsEnd(host *testenv.Host, p program) bool {
	r.mayEnd()
	return r.connect(host, p) == nil && wait(toMidRun+toEnd, func() bool { return len(r.processes()) == 0 })
}

// reachesMidRun waits until the job, and its client, are at work.
func reachesMidRun(host *testenv.Host, p program, job, reference *run, m *measurement) {
	for _, r := range []*run{reference, job} {
		if r == nil || r == reference && p.alone { // that has ended
			continue
		}
		if err := r.connect(host, p); err != nil {
			m.neverRan = err.Error()
			return
		}
	}
	atWork := wait(toMidRun, func() bool { return job.steps() >= midRun || !job.alive() })
	if !job.alive() {
		wait(toLeave, func() bool { _, known := job.exitStatus(); return known })
	}
	switch status, ended := job.exitStatus(); {
	case ended && status == missing:
		_, m.missing, _ = strings.Cut(strings.TrimSpace(job.output()), "not installed: ")
	case ended:
		m.neverRan = fmt.Sprintf("it ended with status %d before it was dumped", status)
	case !atWork:
		m.neverRan = fmt.Sprintf("it is at step %d after %v", job.steps(), toMidRun)
	}
}

// dump dumps the job and, if that ends it, restores it.
func (b *bench) dump(t *testing.T, host *testenv.Host, job *run, m *measurement) {
	images := filepath.Join(t.TempDir(), "images")
	pid := fmt.Sprint(job.root)
	done := place(b.dumps)
	defer func() { done() }()
	m.foretold = foretold(host, pid, images)
	ports := listeningPorts(t, job.processes())
	m.from = gpusOf(t, host, job.processes())
	m.dumpStatus, m.dumpOutput, m.dumpTook = cucriu(host, "dump", "-t", pid, "-D", images)
	if m.dumpStatus != 0 {
		return
	}
	if m.program.hasGuest() {
		m.movedBy = movedBy(images, m.dumpOutput)
	}
	if !wait(toLeave, func() bool { m.left = job.processes(); return len(m.left) == 0 }) {
		return
	}
	done()         // for what others do meanwhile
	job.exit = nil // a restored job is nobody's child
	m.stepsBefore, m.image = job.steps(), bytesIn(images)
	// criu cannot bind a port again while connections to it are in TIME_WAIT.
	if !wait(toForget, func() bool { return !inTimeWait(t, ports) }) {
		t.Logf("connections to %v are still in TIME_WAIT", ports)
	}
	if b.gpus > 1 {
		host.Setenv("CUCRIU_CONFIG", host.Config(swap))
	}
	done = place(b.dumps)
	m.restoreStatus, m.restoreOutput, m.restoreTook = cucriu(host, "restore", "-D", images)
	if m.restoreStatus != 0 {
		return
	}
	m.to = gpusOf(t, host, job.processes())
	_ = os.RemoveAll(images)
}

var driverMoves = regexp.MustCompile(`the driver moves the memory of a process.* reason=("[^"]*"|\S+)`)

// movedBy says who has moved the GPU memory of a program in which the library is.
func movedBy(images, output string) string {
	timeline, _ := os.ReadFile(filepath.Join(images, "cucriu-timeline.json"))
	said := fmt.Sprintf("processes whose memory the library has moved: %d", strings.Count(string(timeline), `"move out"`))
	for _, match := range driverMoves.FindAllStringSubmatch(output, -1) {
		said += "; the driver has moved that of another: " + match[1]
	}
	return said
}

// finish waits until the job has come to its end, wherever it runs now.
func finish(job *run, m *measurement) {
	ended := wait(toEnd, func() bool { return !job.alive() })
	// The client hears of the end before the job has ended, but may say so later.
	done := ended && wait(toSayDone, job.done)
	m.stepsAfter = job.steps()
	status, known := job.exitStatus()
	switch {
	case !ended:
		m.unfinished = fmt.Sprintf("it is at step %d and has not ended after %v", m.stepsAfter, toEnd)
	case known && status != 0:
		m.unfinished = fmt.Sprintf("it ended with status %d at step %d", status, m.stepsAfter)
	case !done:
		m.unfinished = fmt.Sprintf("it ended at step %d and is not done", m.stepsAfter)
	case !wait(toLeave, func() bool { return len(job.processes()) == 0 }):
		m.unfinished = fmt.Sprintf("it ended, and processes %v of it are left", job.processes())
	}
}

// compare compares what the job has computed with an undisturbed run.
func compare(job, reference *run, m *measurement) {
	const trouble = "Traceback (most recent call last)"
	expected := 0
	if reference != nil {
		if !wait(toEnd, func() bool { return !reference.alive() }) || !wait(toSayDone, reference.done) {
			m.differs = "the undisturbed run, with which it is compared, does not come to its end:\n" + reference.tail()
			return
		}
		m.differs = differences(job.results(), reference.results())
		expected = strings.Count(reference.output(), trouble)
	}
	if m.differs == "" && strings.Count(job.output(), trouble) > expected {
		m.differs = "it printed an error of Python's"
	}
}

// foretold names the findings for which cucriu check says that a dump would be refused.
func foretold(host *testenv.Host, pid, images string) []string {
	out, err := host.CucriuCommand("check", "-t", pid, "-D", images, "--json").Output()
	var findings preflight.Findings
	if jsonErr := json.Unmarshal(out, &findings); jsonErr != nil {
		return []string{fmt.Sprintf("cucriu check failed: %v", errors.Join(err, jsonErr))}
	}
	var names []string
	for _, finding := range findings.Of(preflight.SeverityError) {
		names = append(names, finding.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// cucriu runs a command to its end. One that takes too long is asked to undo what it began.
func cucriu(host *testenv.Host, args ...string) (status int, output string, took time.Duration) {
	cmd := host.CucriuCommand(args...)
	cmd.WaitDelay = 30 * time.Second
	begun := time.Now()
	late := time.AfterFunc(toCommand, func() { _ = cmd.Process.Signal(unix.SIGTERM) })
	killed := time.AfterFunc(toCommand+30*time.Second, func() { _ = cmd.Process.Kill() })
	out, err := cmd.CombinedOutput()
	late.Stop()
	killed.Stop()
	took = time.Since(begun)
	if cmd.ProcessState == nil {
		return -1, err.Error(), took
	}
	return cmd.ProcessState.ExitCode(), string(out), took
}

var logPath = regexp.MustCompile(`its log: (\S+)`)

// criuLog is what matters of the log of criu's that an error names.
func criuLog(output string) string {
	match := logPath.FindStringSubmatch(output)
	if match == nil {
		return ""
	}
	data, err := os.ReadFile(match[1])
	if err != nil {
		return err.Error() + "\n"
	}
	var lines []string
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, "Error") || strings.Contains(line, "Warn") || strings.Contains(line, "level=") {
			lines = append(lines, line)
		}
	}
	return match[1] + ":\n" + strings.Join(lines[max(0, len(lines)-40):], "")
}

// bytesIn is the size of the files in a folder.
func bytesIn(dir string) int64 {
	var sum int64
	_ = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			sum += info.Size()
		}
		return nil
	})
	return sum
}
