package dump

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/core/journal"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// startPlain starts a process without CUDA.
func startPlain(t *testing.T, host *testenv.Host) *testenv.Job {
	t.Helper()
	return testenv.JobOf(t, host.Spawn(t.TempDir(), "/bin/sleep", "1000"))
}

// TestAnotherDumpLeavesARestoreAlone: the dump comes after criu has released the processes
// and before post-resume begins. Its time limit is shorter than the driver's restore.
func TestAnotherDumpLeavesARestoreAlone(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := host.Dump(job)
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nlock: {timeout: 1s, try: 1s}\n"))
		host.Faults("restore delay 2s")
		mark := filepath.Join(t.TempDir(), "late")
		// After 2 s the watcher takes over a restore that seems to be cut off.
		late := testenv.Script(t, fmt.Sprintf(`[ "$CRTOOLS_SCRIPT_ACTION" = post-resume ] && touch %s && sleep 1.5; exit 0`, mark))
		criu := host.CriuCommandScripts("restore", images, []string{host.HookBin, late}, "-d")
		if err := criu.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "criu is through", func() bool { return testenv.Exists(mark) })
		plain := startPlain(t, host)
		restored := make(chan error, 1)
		go func() { restored <- criu.Wait() }()
		for {
			var err error
			select {
			case err = <-restored:
			default:
				if run := host.TryDump(plain, filepath.Join(t.TempDir(), "images"), "--leave-running"); run.Err != nil {
					t.Fatal("a job without CUDA cannot be dumped")
				}
				continue
			}
			if err != nil {
				t.Fatalf("criu restore: %v", err)
			}
			break
		}
		host.WaitOutcome("running")
		job.Runs()
	})
}

// orphanedRestore leaves a restore on which no process is at work: hook and watcher are
// killed as post-resume begins, and criu has ended.
func orphanedRestore(t *testing.T) (*testenv.Host, *testenv.Job) {
	t.Helper()
	host := testenv.NewHost(t, 1)
	job := host.Start(1)
	images := host.Dump(job)
	good := *host
	host.UseFailpoint("restore.post-resume=kill-watcher+kill")
	host.Restore(images)
	if host.LastOutcome() != "" {
		t.Fatalf("the restore is not orphaned: outcome %q", host.LastOutcome())
	}
	testenv.Eventually(t, testenv.Soon, "criu has let go of the job", job.Stopped)
	good.Env = append(good.Env, "CUCRIU_FAILPOINT=")
	return &good, job
}

func TestARecoverThatIsInterruptedKillsNothing(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host, job := orphanedRestore(t)
		host.Faults("restore delay 10s") // it must not be over when the signal comes
		recovering := host.CucriuCommand("recover")
		if err := recovering.Start(); err != nil {
			t.Fatal(err)
		}
		// It keeps the processes stopped while the driver is at work.
		testenv.Eventually(t, testenv.Soon, "the driver restores", func() bool { return !job.Stopped() })
		if err := recovering.Process.Signal(unix.SIGINT); err != nil {
			t.Fatal(err)
		}
		if recovering.Wait() == nil {
			t.Fatal("a recover that was interrupted succeeded")
		}
		if !job.Alive() {
			t.Fatal("the job is gone")
		}
		if outcome := host.LastOutcome(); outcome != "" {
			t.Fatalf("the session was closed: %s", outcome)
		}
		host.Faults()
		testenv.Exits(t, host, 0, "recover")
		host.WaitOutcome("running")
		job.Runs()
	})
}

// TestADumpWhosePatienceEndsKillsNoOrphanedJob: the dump takes over an orphaned restore as
// cucriu recover would, but does not wait as long.
func TestADumpWhosePatienceEndsKillsNoOrphanedJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host, job := orphanedRestore(t)
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nlock: {timeout: 1s, try: 1s}\n"))
		host.Faults("restore delay 2s times 1")
		host.Dump(startPlain(t, host), "--leave-running")
		if !job.Alive() {
			t.Fatal("the job is gone")
		}
		testenv.Exits(t, host, 0, "recover")
		host.WaitOutcome("running")
		job.Runs()
	})
}

// TestPostResumeSaysThatTheRestoreWasEndedBefore: the watcher took the restore for cut off,
// and failed. criu does not notice, and its restore succeeds.
func TestPostResumeSaysThatTheRestoreWasEndedBefore(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := host.Dump(job)
		host.UseFailpoint("restore.back.restore=error")
		late := testenv.Script(t, `[ "$CRTOOLS_SCRIPT_ACTION" = post-resume ] || exit 0
until grep -q '"outcome": "killed"' `+host.RunDir+`/sessions/restore-*/session.json; do sleep 0.05; done`)
		cmd := host.CriuCommandScripts("restore", images, []string{host.HookBin, late}, "-d")
		out, err := cmd.CombinedOutput()
		log, _ := os.ReadFile(filepath.Join(images, "restore.log"))
		if err != nil {
			t.Fatalf("criu restore: %v\n%s", err, out)
		}
		if got := host.RestoreOutcome(); got != "killed" {
			t.Fatalf("outcome %q, want killed", got)
		}
		if !strings.Contains(string(out)+string(log), "Error (cucriu-hook): the restore was ended before post-resume (outcome killed") {
			t.Fatalf("post-resume does not say so\n%s", testenv.CriuRun{Log: string(out) + string(log)}.Lines())
		}
	})
}

// TestAHookWithoutRootsRightsIsNotInTheWayOfAJobWithoutCUDA: the run directory belongs to
// root. A shell takes the place of criu.
func TestAHookWithoutRootsRightsIsNotInTheWayOfAJobWithoutCUDA(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		if out, err := host.Cucriu("recover"); err != nil { // this creates the run directory
			t.Fatalf("cucriu recover: %v\n%s", err, out)
		}
		dir, err := os.MkdirTemp("", "not-roots-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		hook := filepath.Join(dir, "cucriu-hook")
		data, err := os.ReadFile(host.HookBin)
		if err := errors.Join(err, os.WriteFile(hook, data, 0o755), os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "images"), 0o700), os.Chown(filepath.Join(dir, "images"), 12345, 12345)); err != nil {
			t.Fatal(err)
		}
		script := fmt.Sprintf(`exec 9<%s/images; export CRTOOLS_IMAGE_DIR=/proc/$$/fd/9; sleep 1000 >/dev/null 2>&1 & export CRTOOLS_INIT_PID=$!
for CRTOOLS_SCRIPT_ACTION in pre-dump network-unlock post-dump; do export CRTOOLS_SCRIPT_ACTION; %s || exit 1; done; kill $!`, dir, hook)
		criu := host.Command("setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups", "/bin/sh", "-c", script)
		criu.Env = append(criu.Env, "CUCRIU_CONFIG=", "HOME=/nonexistent")
		if out, err := criu.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	})
}

// TestALazyDumpWhosePagesNobodyFetchedIsNotCalledDumped: post-dump comes before the pages
// are sent, and criu ends the processes when the program that requested pages hangs up.
func TestALazyDumpWhosePagesNobodyFetchedIsNotCalledDumped(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		port := testenv.FreePort(t)
		criu := host.CriuCommand("dump", t.TempDir(), "-t", job.Root(), "--lazy-pages", "--address", "127.0.0.1", "--port", port)
		if err := criu.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "post-dump is over", func() bool { return host.Step() == "transferring" || host.Step() == "dumped" })
		testenv.Eventually(t, testenv.Soon, "criu waits for the restore", func() bool {
			conn, err := net.Dial("tcp", "127.0.0.1:"+port)
			if err == nil {
				conn.Close()
			}
			return err == nil
		})
		_ = criu.Wait()
		testenv.Eventually(t, testenv.Soon, "the session is closed", func() bool { return host.LastOutcome() != "" && len(host.Watchers()) == 0 })
		if s := host.Sessions()[0]; s.Outcome != journal.OutcomeGone || !strings.Contains(s.Message, "if all of them have") {
			t.Fatalf("the session says: %s: %s", s.Outcome, s.Message)
		}
	})
}

// TestGPUStateGoesToDiskFirstWhereAWriteMayFailLater even if the configuration says
// otherwise. A file system that is not known to be local counts as one where a write may
// fail later.
func TestGPUStateGoesToDiskFirstWhereAWriteMayFailLater(t *testing.T) {
	testenv.Parallel(t)
	for filesystem, synced := range map[string]bool{"ramfs": true, "tmpfs": false} {
		t.Run(filesystem, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nfast_lane: {sync: false}\n"))
				marks, images := t.TempDir(), t.TempDir()
				if err := unix.Mount(filesystem, images, filesystem, 0, "mode=0700"); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = unix.Unmount(images, unix.MNT_DETACH) })
				host.UseFailpoint("dump.syncing=error")
				host.Setenv("CUCRIU_FAILPOINT_MARKS", marks)
				job := host.Start(1)
				run := host.TryDump(job, images, "--leave-running")
				if got := testenv.Exists(filepath.Join(marks, "dump.syncing")); got != synced || (run.Err != nil) != synced {
					t.Fatalf("brought to disk: %v, want %v: %v\n%s", got, synced, run.Err, run.Lines())
				}
				host.WaitOutcome("running")
				job.Runs()
			})
		})
	}
}

// TestCriuIsKilledWhenItHasEndedOnlyTheRoot, which has no CUDA: the image is complete, so what is left of the job
// must not run beside it.
func TestCriuIsKilledWhenItHasEndedOnlyTheRoot(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.StartUnder([]string{"/bin/sh", "-c", `"$@" & wait`, "sh"}, 1)
		images := testenv.NewImages(t)
		host.UseFailpoint(fmt.Sprintf("dump.dumped=kill %d+kill-criu", job.PID))
		if run := host.TryDump(job, images); run.Err == nil {
			t.Fatal("criu was not killed")
		}
		host.WaitOutcome("dumped")
		if pids := testenv.NotEnding(testenv.Running("cudawork")); len(pids) > 0 {
			t.Fatalf("beside the complete image run %v", pids)
		}
		testenv.Eventually(t, testenv.Soon, "their pids are free", func() bool {
			return len(testenv.Running("cudawork")) == 0
		})
		host.Setenv("CUCRIU_FAILPOINT", "")
		host.Restore(images)
		job.Runs()
	})
}

// TestAWorkerIsNotDumpedDuringTheDumpOfItsTree: it has no CUDA, and is parked.
func TestAWorkerIsNotDumpedDuringTheDumpOfItsTree(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--fork-child")
		workers, err := proc.Children(job.PID)
		if err != nil || len(workers) == 0 {
			t.Fatalf("the job has the children %v: %v", workers, err)
		}
		said := filepath.Join(t.TempDir(), "said")
		script := testenv.Script(t, fmt.Sprintf("CUCRIU_CONFIG=%s %s dump -t %d -D %s >%s 2>&1; echo status $? >>%[5]s",
			host.Config("version: 1\nlock: {timeout: 3s}\n"), host.CucriuCommand().Path, workers[0], filepath.Join(t.TempDir(), "worker"), said))
		images := testenv.NewImages(t)
		host.UseFailpoint("dump.drop=run " + script)
		if run := host.TryDump(job, images); run.Err != nil {
			t.Fatal("the tree cannot be dumped")
		}
		out, err := os.ReadFile(said)
		if err != nil || !strings.Contains(string(out), "status 3") {
			t.Errorf("the dump of the worker: %v\n%s", err, out)
		}
		host.Setenv("CUCRIU_FAILPOINT", "")
		host.Restore(images)
		job.Runs()
	})
}
