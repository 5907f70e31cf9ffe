package programs

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// TestProgramsFromAnImage runs rows of the table under cucriu run --dir, and starts each of them from its checkpoint
// twice: at the same time on a GPU each, or one after the other if it needs several or all of one. The original goes
// on until its end, and what it prints is what they must print.
func TestProgramsFromAnImage(t *testing.T) {
	if !testenv.RealDriver() {
		t.Skip("needs GPUs and the programs' libraries (make test-gpu)")
	}
	bench := newBench(t)
	for _, p := range table() {
		if p.image {
			t.Run(p.name, func(t *testing.T) { bench.startFromImage(t, p) })
		}
	}
}

// longJob is a program under cucriu run --dir.
type longJob struct {
	dir  string
	exit chan error // of cucriu run
}

func (j *longJob) output() string {
	data, _ := os.ReadFile(filepath.Join(j.dir, "output.log"))
	return string(data)
}

func (j *longJob) steps() int { return strings.Count("\n"+j.output(), "\nstep ") }

// runLong starts cucriu run --dir in a working directory, with more words. gpu is what the program may see; "" is all.
func runLong(t *testing.T, host *testenv.Host, work, gpu string, env []string, words ...string) *longJob {
	t.Helper()
	j := &longJob{dir: filepath.Join(newDir(t), "D"), exit: make(chan error, 1)}
	cmd := host.CucriuCommand(append([]string{"run", "--dir", j.dir, "--every", "never"}, words...)...)
	cmd.Env = append(cmd.Env, slices.Concat(noMulticast(), env)...)
	if gpu != "" {
		cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+gpu)
	}
	said := new(strings.Builder)
	cmd.Dir, cmd.Stdout, cmd.Stderr = work, said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { j.exit <- cmd.Wait() }()
	t.Cleanup(func() {
		_, _ = host.Cucriu("jobs", "stop", j.dir)
		if t.Failed() {
			output := j.output()
			t.Logf("%s said:\n%s\nand its program:\n%s", j.dir, said, output[max(0, len(output)-4000):])
		}
	})
	return j
}

// ends waits until the job has ended, and fails the test unless it is done.
func (j *longJob) ends(t *testing.T) {
	t.Helper()
	if !wait(toEnd, func() bool { return len(j.exit) > 0 }) {
		t.Fatalf("%s has not ended after %v: step %d", j.dir, toEnd, j.steps())
	}
	if err := <-j.exit; err != nil || !strings.Contains("\n"+j.output(), "\ndone") {
		t.Errorf("%s ended at step %d: %v", j.dir, j.steps(), err)
	}
}

// startFromImage takes a program through a checkpoint, and starts two jobs from it.
func (b *bench) startFromImage(t *testing.T, p program) {
	if b.gpus < p.gpus {
		t.Skipf("needs %d GPUs, this machine has %d", p.gpus, b.gpus)
	}
	host, work := b.host.For(t), newDir(t)
	oneByOne := p.gpus > 1 || p.greedy // its kernels wait for each other (see alone), or it takes a whole GPU
	gpus := []string{"", ""}
	if p.gpus == 1 {
		gpus = []string{"0", fmt.Sprint(b.gpus - 1)}
	}
	// A program removes its temporary directories while the jobs from its image run. (Paths of sockets must be short.)
	tmp, err := os.MkdirTemp("", "t")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	env := append(slices.Clone(p.env), "TMPDIR="+tmp)
	first := runLong(t, host, work, gpus[0], env, append([]string{"--"}, resolve(t, p.command)...)...)
	if !wait(toMidRun, func() bool { return first.steps() >= midRun || len(first.exit) > 0 }) || len(first.exit) > 0 {
		t.Fatalf("it is at step %d, and was to be at %d", first.steps(), midRun)
	}
	before := results(first.output())
	if status, out, _ := cucriu(host, "jobs", "checkpoint", first.dir); status != 0 {
		t.Fatalf("jobs checkpoint: %d\n%s", status, out)
	}
	after := results(first.output())
	if oneByOne {
		letEnd(t, work)
		first.ends(t)
	}
	var jobs []*longJob
	for i := range 2 {
		jobs = append(jobs, runLong(t, host, work, gpus[i], nil, "--image", first.dir, "--private", work))
		if oneByOne {
			jobs[i].ends(t)
		}
	}
	if !oneByOne {
		for _, job := range jobs {
			if !wait(toMidRun, func() bool { return job.steps() > 0 || len(job.exit) > 0 }) {
				t.Errorf("%s does nothing", job.dir)
			}
		}
		for _, job := range jobs {
			copies, _ := filepath.Glob(filepath.Join(job.dir, "private", "*"))
			for _, dir := range copies {
				letEnd(t, dir)
			}
		}
		letEnd(t, work)
		for _, job := range append(jobs, first) {
			job.ends(t)
		}
	}
	for _, job := range jobs {
		if p.compares {
			continue // no two runs print the same
		}
		if err := continues(results(job.output()), before, after, results(first.output())); err != nil {
			t.Errorf("%s: %v", job.dir, err)
		}
	}
	fmt.Printf("| %s | two jobs from its image | works: %v |\n", p.name, !t.Failed())
}

// letEnd says to a program of the harness's own that it may come to its end.
func letEnd(t *testing.T, work string) { testenv.WriteFile(t, filepath.Join(work, mayEnd), "") }

// continues checks that a job has printed all that the original printed after the checkpoint, and nothing else: before
// and after are what it had printed when the checkpoint was asked for, and when it was made.
func continues(got, before, after, all []string) error {
	set := func(lines []string) map[string]bool {
		set := make(map[string]bool, len(lines))
		for _, line := range lines {
			set[line] = true
		}
		return set
	}
	has, old, early, known := set(got), set(before), set(after), set(all)
	for _, line := range slices.Sorted(maps.Keys(has)) {
		if !known[line] || old[line] {
			return fmt.Errorf("it has printed %q, and the original has not, or before", line)
		}
	}
	for _, line := range all {
		if !early[line] && !has[line] {
			return fmt.Errorf("it has not printed %q", line)
		}
	}
	return nil
}

// TestTheHarnessStartsFromAnImage: on the simulated driver.
func TestTheHarnessStartsFromAnImage(t *testing.T) {
	if testenv.RealDriver() {
		t.Skip("needs the simulated driver")
	}
	bench := newBench(t)
	script, err := filepath.Abs("testdata/counting.sh")
	if err != nil {
		t.Fatal(err)
	}
	work := testenv.Artefact(t, "make workload", "build", "workload", "cudawork")
	command := []string{"/bin/bash", script, fmt.Sprint(waitsAt), fmt.Sprint(allSteps), mayEnd, work}
	// Its files are no part of what goes on: the original has left them as they are at its end.
	steps := `for ((i = 1; i <= 60; i++)); do echo step $i; sleep 0.05; ((i < 40)) || until [[ -e may-end ]]; do sleep 0.05; done; done; echo done`
	for _, p := range []program{
		{name: "at the same time", command: command, gpus: 1},
		{name: "one after the other", command: []string{"/bin/bash", "-c", steps}, gpus: 1, greedy: true},
	} {
		t.Run(p.name, func(t *testing.T) { bench.startFromImage(t, p) })
	}
	for name, lines := range map[string][]string{"": {"c", "d"}, "has not printed": {"c"}, "has printed": {"c", "d", "e"}} {
		err := continues(lines, []string{"a"}, []string{"a", "b"}, []string{"a", "b", "c", "d"})
		if (err == nil) != (name == "") || err != nil && !strings.Contains(err.Error(), name) {
			t.Errorf("%q: %v", lines, err)
		}
	}
}
