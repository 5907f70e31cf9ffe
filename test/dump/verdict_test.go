package dump

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// lastMessage returns the message of the last session, which must be closed.
func lastMessage(host *testenv.Host) string {
	sessions := host.Sessions()
	return sessions[len(sessions)-1].Message
}

// wantVerdict fails the test unless a text says that these processes of the job have ended,
// and does not say that the job runs on.
func wantVerdict(t *testing.T, text string, job *testenv.Job, gone ...int) {
	t.Helper()
	for _, pid := range gone {
		if !strings.Contains(text, fmt.Sprintf("process %d (cudawork)", pid)) {
			t.Errorf("it does not say that process %d has ended:\n%s", pid, text)
		}
	}
	all := len(gone) == len(job.Dirs)
	if !strings.Contains(text, "the job has ended") || strings.Contains(text, "a part of the job has ended") == all ||
		strings.Contains(text, "the job runs") || strings.Contains(text, "the job keeps running") {
		t.Errorf("it does not say what became of the job (all of it has ended: %v):\n%s", all, text)
	}
}

// TestAFailedDumpSaysWhichProcessesHaveEnded: the processes end at a step, which then
// fails.
func TestAFailedDumpSaysWhichProcessesHaveEnded(t *testing.T) {
	testenv.Parallel(t)
	for _, test := range []struct {
		processes int
		outcome   string
	}{{1, "gone"}, {2, "running"}} {
		for _, step := range []string{"lock", "checkpoint", "manifest", "post-dump"} {
			t.Run(fmt.Sprintf("one of %d at %s", test.processes, step), func(t *testing.T) {
				testenv.Isolated(t, func(t *testing.T) {
					host := testenv.NewHost(t, 1)
					job := host.Start(test.processes, jobOf(test.processes)...)
					victim := job.MustStatus(0).PID
					out, err := testenv.Failing(t, host, fmt.Sprintf("dump.%s=kill %d+error", step, victim), "dump", "-t", job.Root(), "-D", testenv.NewImages(t))
					if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != testenv.StatusEnded {
						t.Errorf("cucriu dump: %v, want exit status %d", err, testenv.StatusEnded)
					}
					wantVerdict(t, out, job, victim)
					wantVerdict(t, lastMessage(host), job, victim)
					if got := host.LastOutcome(); got != test.outcome {
						t.Errorf("outcome %q, want %q", got, test.outcome)
					}
					if test.processes > 1 {
						othersRun(t, job)
					}
				})
			})
		}
	}
}

// jobOf returns the arguments of cudawork for processes that do not need each other.
func jobOf(processes int) []string {
	if processes == 1 {
		return nil
	}
	return []string{"--procs", fmt.Sprint(processes)}
}

// othersRun fails the test unless all processes but the first go on.
func othersRun(t *testing.T, job *testenv.Job) {
	t.Helper()
	rest := *job
	rest.Dirs = job.Dirs[1:]
	rest.Runs()
}

// TestTheWatcherSaysWhichProcessesHaveEnded after criu was killed.
func TestTheWatcherSaysWhichProcessesHaveEnded(t *testing.T) {
	testenv.Parallel(t)
	for _, test := range []struct {
		processes int
		outcome   string
	}{{1, "gone"}, {2, "running"}} {
		t.Run(fmt.Sprint("one of ", test.processes), func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				job := host.Start(test.processes, jobOf(test.processes)...)
				victim := job.MustStatus(0).PID
				// The victim dies while the watcher brings the job back.
				host.UseFailpoint(fmt.Sprintf("dump.manifest=kill-criu+kill,dump.back.continue=kill %d", victim))
				if run := host.TryDump(job, t.TempDir()); run.Err == nil {
					t.Fatal("a criu that was killed has dumped")
				}
				host.WaitOutcome(test.outcome)
				wantVerdict(t, lastMessage(host), job, victim)
				if test.processes > 1 {
					othersRun(t, job)
				}
			})
		})
	}
}

// TestASuspendOrResumeSaysThatTheProcessHasEnded although all its own steps succeeded, or
// would have.
func TestASuspendOrResumeSaysThatTheProcessHasEnded(t *testing.T) {
	testenv.Parallel(t)
	for _, test := range []struct{ name, command, point string }{
		{"the suspend fails", "suspend", "suspend.checkpoint=kill %d+error"},
		{"the suspend does not", "suspend", "suspend.release=kill %d"},
		{"before the restore", "resume", "suspend.back.stop=kill %d"},
		{"after the restore", "resume", "suspend.back.continue=kill %d"},
	} {
		t.Run(test.name, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				job := host.Start(1)
				if test.command == "resume" {
					testenv.Exits(t, host, 0, "suspend", "-p", job.Root())
				}
				out, err := testenv.Failing(t, host, fmt.Sprintf(test.point, job.PID), test.command, "-p", job.Root())
				if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != testenv.StatusEnded {
					t.Errorf("cucriu %s: %v, want exit status %d", test.command, err, testenv.StatusEnded)
				}
				wantVerdict(t, out, job, job.PID)
				wantVerdict(t, lastMessage(host), job, job.PID)
				if got := host.LastOutcome(); got != "gone" {
					t.Errorf("outcome %q", got)
				}
			})
		})
	}
}

// TestAJobThatEndsAfterItsDumpWasNotEndedByIt: criu was told to leave the job running.
func TestAJobThatEndsAfterItsDumpWasNotEndedByIt(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := testenv.NewImages(t)
		out, err := testenv.Failing(t, host, fmt.Sprintf("dump.back.stop=kill %d", job.PID), "dump", "-t", job.Root(), "-D", images, "-R")
		if err != nil || !strings.Contains(out, "has ended since") {
			t.Fatalf("cucriu dump: %v\n%s", err, out)
		}
		wantVerdict(t, lastMessage(host), job, job.PID)
		testenv.WholeImage(t, images)
	})
}

// TestAJobThatEndsOnItsWayBackWasNotEndedByItsDump: criu was killed when the image was complete and all of
// the job lived, and then the watcher, too. What the job did since is not in the image, so that is not called its end.
func TestAJobThatEndsOnItsWayBackWasNotEndedByItsDump(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		host.UseFailpoint(fmt.Sprintf("dump.dumped=kill-criu,dump.back.stop=kill %d+kill", job.PID))
		_ = host.TryDump(job, t.TempDir())
		testenv.Eventually(t, testenv.Soon, "the watcher is killed on the way back", func() bool { return job.Gone() && len(host.Watchers()) == 0 })
		testenv.Exits(t, host, 0, "recover")
		host.WaitOutcome("gone")
	})
}
