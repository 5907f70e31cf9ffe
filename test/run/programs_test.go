package run

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// TestProgramsRunBeforeAJobAndOnceItRuns, each time it is started or resumed, in its sandbox. No thread of it runs
// before the first has ended. Neither is in a checkpoint.
func TestProgramsRunBeforeAJobAndOnceItRuns(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newMixedWorld(t)
		noted := t.TempDir()
		// The job changes its files again and again, if it runs.
		before := testenv.Script(t, fmt.Sprintf(`
look() { cat %[1]s/status %[1]s/cuda/status 2>/dev/null; }
first=$(look); sleep 0.5; second=$(look)
[ "$first" = "$second" ] && printf 'before %%s ' "$@" >>%[2]s/$$.new
grep -o '"incarnation": "[^"]*"' %[3]s >>%[2]s/$$.new
mv %[2]s/$$.new %[2]s/before
echo prepared "$@"
sleep 600 & `, w.work, noted, aboutFile))
		after := testenv.Script(t, fmt.Sprintf(`
exec 2>/dev/null
first=$(cat %[1]s/status); until [ "$first" != "$(cat %[1]s/status)" ]; do sleep 0.1; done
grep -o '"incarnation": "[^"]*"' %[3]s >>%[2]s/after
echo started "$@"`, w.work, noted, aboutFile))
		flags := append([]string{"--on-start", before + " a  b", "--on-started", after + " c"}, once...)
		told := func(w *world, r *run) {
			t.Helper()
			r.says("--on-start: prepared a b")
			r.says("--on-started: started c")
			w.ticks(1)
			w.checks()
			first, _ := os.ReadFile(filepath.Join(noted, "before"))
			last, _ := os.ReadFile(filepath.Join(noted, "after"))
			if incarnation, is := strings.CutPrefix(string(first), "before a before b "); !is || incarnation != string(last) {
				t.Errorf("before the job %q was noted, and %q once it ran", first, last)
			}
			for _, name := range []string{"before", "after"} {
				must(t, os.Remove(filepath.Join(noted, name)))
			}
			if left := testenv.Running("sleep"); len(left) > 0 {
				t.Errorf("processes %v of the program are left", left)
			}
		}
		original := w.run(flags...)
		told(w, original)
		original.verified(1)
		original.says("a trial restore without the GPUs")
		for range 2 {
			job := w.from()
			r := job.startFrom(w, flags[:4]...)
			told(job, r)
			r.signal(unix.SIGTERM)
			r.ends(requeue)
			r = job.again()
			told(job, r)
			job.stop(0)
			r.ends(0)
		}
		w.stop(0)
		original.ends(0)
	})
}

// TestAProgramBeforeAJobIsItsUsers, also if only the image says who that is.
func TestAProgramBeforeAJobIsItsUsers(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		w.command = []string{"/bin/sleep", "600"}
		w.flags = []string{"--every", "1s", "--user", "nobody", "--on-start", "/usr/bin/id -nu"}
		r := w.run()
		if capabilities, err := proc.Capabilities(); err != nil || capabilities&(1<<unix.CAP_SYS_RESOURCE) == 0 {
			r.ends(125, "CAP_SYS_RESOURCE") // see the test of package job
			return
		}
		r.says("--on-start: nobody\n")
		r.verified(1)
		job := w.from()
		of := job.startFrom(w, "--on-start", "id -nu", "--on-started", "id -nu")
		of.says("--on-start: nobody\n")
		of.says("--on-started: nobody\n")
		for _, r := range []*run{r, of} {
			r.signal(unix.SIGTERM)
			r.ends(requeue)
		}
	})
}

// TestAProgramThatFailsBeforeAJobKeepsItFromStarting, and nothing else: without it the job starts, or resumes from the
// same checkpoint.
func TestAProgramThatFailsBeforeAJobKeepsItFromStarting(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newMixedWorld(t)
		w.host.Setenv("CUCRIU_FAILPOINT_HASTE", "20")
		failing := testenv.Script(t, "echo it is bad; exit 7")
		hanging := "/bin/sleep 600"
		fails := []struct{ program, says string }{
			{failing, "--on-start " + failing + ": exit status 7: it is bad"},
			{hanging, "--on-start " + hanging + ": it has not ended within 1m0s"},
			{"/nonsense", "no such file"},
			{"nonsense", "not found"},
		}
		for _, f := range fails {
			w.run("--on-start", f.program).ends(3, f.says)
			if testenv.Exists(w.report().What) || w.report().Tick > 0 || testenv.Exists(w.dir) {
				t.Fatalf("%s: the job has run", f.program)
			}
		}
		w.run("--on-start", "./relative").ends(2, "absolute")
		original := w.run(once...)
		w.checks()
		original.verified(1)
		original.says("a trial restore without the GPUs")
		before := content(t, filepath.Join(w.dir, "checkpoints", "000001"))
		for _, f := range fails {
			job := w.from()
			job.startFrom(w, "--on-start", f.program).ends(3, f.says)
			if testenv.Exists(job.dir) {
				t.Errorf("%s is left", job.dir)
			}
		}
		job := w.from()
		must(t, os.Mkdir(job.dir, 0o700)) // so that it stays
		job.startFrom(w, "--on-start", failing).ends(3)
		r := job.startFrom(w, "--on-start", "/bin/true")
		r.says("from image")
		if strings.Contains(r.said(), "newer") {
			t.Errorf("the start that failed has left its copies")
		}
		job.ticks(3)
		job.checks()
		job.stop(0)
		r.ends(0)
		if after := content(t, filepath.Join(w.dir, "checkpoints", "000001")); len(before) != len(after) {
			t.Errorf("the image had %d files, and has %d", len(before), len(after))
		}
		original.signal(unix.SIGTERM)
		original.ends(requeue)
		newest := w.newest()
		for _, f := range fails {
			r := w.again("--on-start", f.program)
			r.ends(3, f.says)
			if said := r.said(); strings.Contains(said, "trying") || strings.Contains(said, "cannot be restored") {
				t.Errorf("%s: it counts as a damaged checkpoint:\n%s", f.program, said)
			}
		}
		r = w.again("--on-start=")
		r.says("resumes from checkpoint " + newest)
		w.checks()
		w.stop(0)
		r.ends(0)
	})
}

// TestAProgramThatFailsOnceTheJobRunsIsAWarning.
func TestAProgramThatFailsOnceTheJobRunsIsAWarning(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.host.Setenv("CUCRIU_FAILPOINT_HASTE", "20")
		r := w.run("--on-started", testenv.Script(t, "echo it is bad; exit 7"))
		r.says("exit status 7: it is bad; D keeps running")
		w.ticks(3)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		r = w.again("--on-started", "/bin/sleep 600")
		r.says("it has not ended within 1m0s; D keeps running")
		if left := testenv.Running("sleep"); len(left) > 0 {
			t.Errorf("processes %v of the program are left", left)
		}
		w.ticks(3)
		w.stop(0)
		r.ends(0)
	})
}

// TestNoKillWhileAProgramRunsBeforeAJobLosesTheJob: neither at its first start, nor at one from an image, nor at a
// resume. The program is ended, and the job started by the same command.
func TestNoKillWhileAProgramRunsBeforeAJobLosesTheJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newMixedWorld(t)
		killed := func(start func(flags ...string) *run) *run {
			t.Helper()
			for range 2 {
				at := t.TempDir()
				program := testenv.WaitsForGo(t, at)
				r := start("--on-start", program)
				r.awaits("the program runs", func() bool { return testenv.Exists(filepath.Join(at, "reached")) })
				r.kill()
				testenv.Eventually(t, testenv.Soon, "the program has ended", func() bool {
					return len(testenv.NotEnding(testenv.Running(filepath.Base(program)))) == 0
				})
			}
			at := t.TempDir()
			r := start("--on-start", testenv.WaitsForGo(t, at)) // a preemption does not wait for it
			r.awaits("the program runs", func() bool { return testenv.Exists(filepath.Join(at, "reached")) })
			r.signal(unix.SIGTERM)
			r.ends(requeue)
			return start("--on-start=")
		}
		original := killed(func(flags ...string) *run { return w.run(append(flags, once...)...) })
		w.checks()
		original.verified(1)
		original.says("a trial restore without the GPUs")
		job := w.from()
		r := killed(func(flags ...string) *run { return job.startFrom(w, flags...) })
		r.says("from image")
		job.ticks(3)
		job.checks()
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		r = killed(func(flags ...string) *run { return job.again(flags...) })
		r.says("resumes from checkpoint 000001")
		job.ticks(3)
		job.checks()
		if jobs := testenv.NotEnding(testenv.Running("cudawork")); len(jobs) != 2 {
			t.Errorf("there are %v of two jobs", jobs)
		}
		for _, w := range []*world{job, w} {
			w.stop(0)
		}
		r.ends(0)
		original.ends(0)
		w.noProcesses()
	})
}
