package run

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cucriu/internal/jobs"
	"cucriu/internal/testenv"
)

// killsVariable says that all are killed at each step, and not some.
const killsVariable = "CUCRIU_RUN_KILLS"

// The steps of a checkpoint, of a removal, and of a resume.
var (
	checkpointSteps = []string{
		"dump.lock", "dump.checkpoint", "dump.dropping", "dump.manifest", "dump.post-dump", "dump.back.filled", "dump.close", "jobs.dumped",
		"jobs.staged", "store.begin", "store.file", "store.record", "store.rename", "store.renamed", "store.setaside",
	}
	resumeSteps = []string{"restore.pre-restore", "restore.pre-resume", "restore.back.fill", "restore.close", "jobs.restored"}
)

// TestNoKillLosesMoreThanAnInterval: whoever is killed at whatever step of a checkpoint, the
// job runs on, or the same command goes on from the newest checkpoint.
func TestNoKillLosesMoreThanAnInterval(t *testing.T) {
	testenv.Parallel(t)
	for i, step := range checkpointSteps {
		t.Run(step, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := newMixedWorld(t)
				w.flags = []string{"--every", "1s", "--keep", "1"}
				for _, k := range victimsOf(i) {
					w.surviveKill(t, step, k, false)
				}
				w.finish(w.run())
				inOrder(t, w)
			})
		})
	}
}

// TestNoKillDuringAResumeLosesTheJob, or makes two of it.
func TestNoKillDuringAResumeLosesTheJob(t *testing.T) {
	testenv.Parallel(t)
	for i, step := range resumeSteps {
		t.Run(step, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := newMixedWorld(t)
				for _, k := range victimsOf(i) {
					w.surviveKill(t, step, k, true)
				}
				w.finish(w.run())
				inOrder(t, w)
			})
		})
	}
}

func victimsOf(i int) []who {
	if os.Getenv(killsVariable) != "" {
		return everybody
	}
	if i%2 == 0 {
		return []who{everybody[i/2%(len(everybody)-1)]}
	}
	return []who{allKilled}
}

// surviveKill runs the job, kills somebody at a step, and leaves the job running without its
// supervisor.
func (w *world) surviveKill(t *testing.T, step string, k who, resume bool) {
	t.Helper()
	t.Logf("%s: %s", step, k)
	r := w.run()
	r.verified(1)
	if resume {
		r.killsAll()
	} else {
		r.kill()
	}
	s := w.stopAt(step)
	r = w.runAs(s.host)
	s.await(r)
	if !w.kills(k) {
		t.Logf("there is no %s at this step", k)
	}
	s.goOn()
	w.survives(t, r, resume)
}

// survives fails the test unless the job runs on, or goes on with the same command. It leaves the
// job running without its supervisor. A job that a killed resume has left running is ended by its supervisor, which
// resumes it once more.
func (w *world) survives(t *testing.T, r *run, resume bool) {
	t.Helper()
	const resumed = "D resumes from checkpoint"
	// The supervisor tells whatever it knows before it ends. A job without one runs or does not.
	from := w.report()
	testenv.Eventually(t, 3*testenv.Soon, "the job runs on, or the supervisor ends", func() bool {
		select {
		case <-r.done:
			return true
		default:
			return w.report().Tick > from.Tick+10 && (!resume || strings.Contains(r.said(), resumed))
		}
	})
	select {
	case <-r.done:
		newest := w.newest()
		r = w.run()
		r.awaits("the job goes on", func() bool {
			return strings.Contains(r.said(), resumed) || strings.Contains(r.said(), "is supervised again")
		})
		if strings.Contains(r.said(), resumed) {
			r.awaits("the log has it", func() bool { e, _ := w.last(jobs.EventResumed); return strings.Contains(r.said(), e.Message) })
			e, _ := w.last(jobs.EventResumed)
			saved := strings.Contains(r.said(), "was made from the image that an earlier supervisor had staged")
			if e.Checkpoint != newest && (!saved || e.Checkpoint <= newest) {
				t.Fatalf("it goes on from %s, and the newest was %s", e.Checkpoint, newest)
			}
		}
	default:
	}
	w.ticks(3)
	w.checks()
	w.onlyOnce(t)
	r.kill()
}

// onlyOnce fails the test if there are two of the job, but for as long as a restore of it is tried.
func (w *world) onlyOnce(t *testing.T) {
	t.Helper()
	var inits, roots []int
	for begin := time.Now(); time.Since(begin) < testenv.Soon; time.Sleep(5 * time.Millisecond) {
		inits, roots = nil, nil
		for _, pid := range testenv.PIDs() {
			if slices.Contains(w.processes, pid) {
				continue
			}
			if words := testenv.CommandLine(pid); testenv.ProcessName(pid) == "cucriu" && len(words) > 1 && words[1] == "sandbox-init" {
				inits = append(inits, pid)
			}
			if testenv.ProcessName(pid) == filepath.Base(w.command[0]) {
				roots = append(roots, pid)
			}
		}
		if len(inits) == 1 && len(roots) == 1 {
			return
		}
	}
	t.Fatalf("the job has the places %v and the processes %v", inits, roots)
}
