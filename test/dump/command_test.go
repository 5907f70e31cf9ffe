package dump

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/hooks/timeline"
	"cucriu/internal/core/journal"
	"cucriu/internal/testenv"
)

func TestCommandDumpAndRestore(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		job := host.Start(2, "--procs", "2", "--gpus", "0,1", "--spin", "stream-sync")
		images := testenv.NewImages(t)
		if err := os.Mkdir(images, 0o777); err != nil { // an empty directory is as good as none
			t.Fatal(err)
		}
		out := testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images, "--timeline")
		testenv.Eventually(t, testenv.Soon, "the job has ended", func() bool { return !job.Alive() })
		if host.LastOutcome() != "dumped" {
			t.Fatalf("the job is not dumped but %q\n%s", host.LastOutcome(), out)
		}
		testenv.WholeImage(t, images)
		_, result, _ := strings.Cut(out, "\ndumped ") // what comes before it, on a busy machine, is progress
		if !strings.HasPrefix(cmp.Or(result, strings.TrimPrefix(out, "dumped ")), fmt.Sprintf("process %d into %s: 2 CUDA processes", job.PID, images)) {
			t.Errorf("the result does not come first:\n%s", out)
		}
		if !strings.Contains(out, "START MS") || !strings.Contains(out, "\ncheckpoint  ") || !regexp.MustCompile(`\nand \d+ of at most [\d.]+ ms each`).MatchString(out) {
			t.Errorf("no timeline:\n%s", out)
		}
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		var summary struct {
			Success bool
			RootPID int    `json:"root_pid"`
			GPU     uint64 `json:"gpu_bytes"`
			Phases  timeline.Phases
		}
		cmd := host.CucriuCommand("restore", "-D", images, "--json")
		data, err := cmd.Output()
		if err == nil {
			err = json.Unmarshal(data, &summary)
		}
		if err != nil || !summary.Success || summary.RootPID != job.PID || summary.GPU == 0 || len(summary.Phases) == 0 {
			t.Fatalf("cucriu restore --json: %v\n%s", err, data)
		}
		job.Runs()
		testenv.NoWatcher(t, host)
	})
}

func TestCommandDumpLeavesRunning(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := testenv.DumpAndLeave(t, host, job, "-R")
		job.Runs()
		testenv.WholeImage(t, images)
		testenv.Exits(t, host, testenv.StatusRefused, "dump", "-t", job.Root(), "-D", images) // never over an existing image
		job.Runs()
		job.Kill()
		testenv.Exits(t, host, 0, "restore", "-D", images)
		job.Runs()

		// Whatever criu's configuration says.
		home := t.TempDir()
		file := filepath.Join(home, ".criu", "default.conf")
		if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o700), os.WriteFile(file, []byte("leave-stopped\n"),
			0o600)); err != nil {
			t.Fatal(err)
		}
		host.Setenv("HOME", home)
		testenv.DumpAndLeave(t, host, job, "-R")
		job.Runs()
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", filepath.Join(home, "images"), "-R", "--criu-config", file)
		job.Runs()
	})
}

func TestCommandLeavesStopped(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := testenv.DumpAndLeave(t, host, job, "-s")
		if !job.Stopped() {
			t.Fatal("cucriu dump -s left the job running")
		}
		job.Signal(unix.SIGCONT)
		job.Runs()
		job.Kill()
		testenv.Exits(t, host, 0, "restore", "-D", images, "-s")
		if !job.Stopped() {
			t.Fatal("cucriu restore -s left the job running")
		}
		job.Signal(unix.SIGCONT)
		job.Runs()
	})
}

func TestCommandDumpsATreeWithoutCUDA(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		host.Setenv("CUCRIU_LIBCUDA", "/nonexistent/libcuda.so.1")
		job := testenv.JobOf(t, host.Spawn(t.TempDir(), "/bin/sleep", "1000"))
		images := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		testenv.Exits(t, host, 0, "restore", "-D", images)
		if !job.Alive() {
			t.Fatal("sleep is gone")
		}
	})
}

// TestAnImageThatCannotBePutInPlace because somebody has written there meanwhile: the session says so.
func TestAnImageThatCannotBePutInPlace(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		for _, flags := range [][]string{nil, {"-R"}} {
			images, config := testenv.NewImages(t), filepath.Join(t.TempDir(), "criu.conf")
			script := testenv.Script(t, `[ "$CRTOOLS_SCRIPT_ACTION" != pre-dump ] || mkdir -p `+images+`/somebodys`)
			testenv.WriteFile(t, config, "action-script "+script+"\n")
			out := testenv.Exits(t, host, 1, append([]string{"dump", "-t", job.Root(), "-D", images, "--criu-config", config}, flags...)...)
			job.Runs()
			all := host.Sessions()
			message := all[len(all)-1].Message
			if !strings.HasPrefix(message, "the image could not be put in place: image directory "+images+": ") || !strings.HasSuffix(message, "; the job keeps running") {
				t.Errorf("dump %v: the session says %q, and the command:\n%s", flags, message, out)
			}
		}
	})
}

func TestCommandForegroundPassesSignalsAndTheStatus(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.StartUnder([]string{"/bin/sh", "-c", `trap 'kill $!; exit 42' TERM; "$@" & wait`, "sh"}, 1)
		images := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		cmd := host.CucriuCommand("restore", "-D", images, "--foreground")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "the job is restored", func() bool { return host.RestoreOutcome() == "running" })
		job.Runs()
		if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 42 {
			t.Fatalf("exit status %d, and the job's is 42", code)
		}
		testenv.Eventually(t, testenv.Soon, "the child of the job is gone", testenv.JobOf(t, job.MustStatus(0).PID).Gone)

		// A signal that comes while criu has not ended, when the job runs already.
		pid, config := filepath.Join(t.TempDir(), "pid"), filepath.Join(t.TempDir(), "criu.conf")
		early := testenv.Script(t, `[ "$CRTOOLS_SCRIPT_ACTION" = post-resume ] || exit 0; until [ -s `+pid+` ]; do sleep 0.05; done; kill -TERM $(cat `+pid+`)`)
		testenv.WriteFile(t, config, "action-script "+early+"\n")
		cmd = host.CucriuCommand("restore", "-D", images, "--foreground", "--criu-config", config)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.WriteFile(t, pid, strconv.Itoa(cmd.Process.Pid))
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 42 {
			t.Fatalf("exit status %d after an early signal, and the job's is 42", code)
		}
	})
}

func TestCommandBesideTheHookInCriusConfiguration(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := testenv.NewImages(t)
		config := filepath.Join(t.TempDir(), "criu.conf")
		if err := os.WriteFile(config, []byte("action-script "+host.HookBin+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images, "--criu-config", config)
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		testenv.Exits(t, host, 0, "restore", "-D", images, "--criu-config", config)
		job.Runs()
		if n := len(host.Sessions()); n != 2 {
			t.Errorf("%d sessions for one dump and one restore", n)
		}
	})
}

func TestCommandRefuses(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		full := t.TempDir()
		if err := os.WriteFile(filepath.Join(full, "precious"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		images := testenv.NewImages(t)
		for _, test := range []struct {
			status int
			says   string
			args   []string
		}{
			{testenv.StatusUsage, "-t", []string{"dump", "-D", images}},
			{testenv.StatusUsage, "-D", []string{"dump", "-t", job.Root()}},
			{testenv.StatusUsage, "unknown flag", []string{"dump", "--no-such-flag"}},
			{testenv.StatusUsage, "-o", []string{"dump", "-t", job.Root(), "-D", images, "-o", "a/b"}},
			{testenv.StatusUsage, "ghost-limit", []string{"dump", "-t", job.Root(), "-D", images, "--ghost-limit", "lots"}},
			{testenv.StatusRefused, "not empty", []string{"dump", "-t", job.Root(), "-D", full}},
			{testenv.StatusRefused, "not a directory", []string{"dump", "-t", job.Root(), "-D", filepath.Join(full, "precious", "images")}},
			{testenv.StatusRefused, "criu", []string{"dump", "-t", job.Root(), "-D", images, "--criu", "/nonexistent/criu"}},
			{testenv.StatusRefused, "99999", []string{"dump", "-t", "99999", "-D", images}},
			{testenv.StatusRefused, "does not exist", []string{"restore", "-D", images}},
			{testenv.StatusUsage, "foreground", []string{"restore", "-D", full, "--foreground", "-d"}},
		} {
			if out := testenv.Exits(t, host, test.status, test.args...); !strings.Contains(out, test.says) {
				t.Errorf("cucriu %v says nothing of %q:\n%s", test.args, test.says, out)
			}
			testenv.NotDumped(t, job, images)
		}
		if names, _ := os.ReadDir(full); len(names) != 1 {
			t.Errorf("a refused dump has left %v", names)
		}
	})
}

// TestCommandGivesUpOnASignal checks every stage at which a signal can come.
func TestCommandGivesUpOnASignal(t *testing.T) {
	testenv.Parallel(t)
	stage := func(name string) func(*testing.T, *testenv.Host) []string {
		// An action script that waits until the signal has come. criu before 4.2 reads the
		// file twice, and so calls the script twice.
		return func(t *testing.T, host *testenv.Host) []string {
			script := testenv.Script(t, `[ "$CRTOOLS_SCRIPT_ACTION" = `+name+` ] || exit 0
: >`+host.RunDir+`/reached; until [ -e `+host.RunDir+`/taken ]; do sleep 0.02; done`)
			config := filepath.Join(t.TempDir(), "criu.conf")
			if err := os.WriteFile(config, []byte("action-script "+script+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			return []string{"--criu-config", config}
		}
	}
	for _, test := range []struct {
		name   string
		signal unix.Signal
		hold   func(*testing.T, *testenv.Host) []string
	}{
		{"while it locks", unix.SIGINT, func(_ *testing.T, host *testenv.Host) []string {
			host.Faults("lock hang")
			return nil
		}},
		{"after pre-dump", unix.SIGTERM, stage("pre-dump")},
	} {
		t.Run(strings.ReplaceAll(test.name, " ", "-"), func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				job := host.Start(1)
				images := testenv.NewImages(t)
				if err := os.MkdirAll(host.RunDir, 0o700); err != nil {
					t.Fatal(err)
				}
				extra := test.hold(t, host)
				reached := func() bool { return testenv.Exists(filepath.Join(host.RunDir, "reached")) }
				if extra == nil {
					reached = func() bool { return host.Step() == "lock" }
				}
				out := new(testenv.Output)
				cmd := host.CucriuCommand(append([]string{"dump", "-t", job.Root(), "-D", images}, extra...)...)
				cmd.Stdout, cmd.Stderr = out, out
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				testenv.Eventually(t, testenv.Soon, "the dump gets there", reached)
				if err := cmd.Process.Signal(test.signal); err != nil {
					t.Fatal(err)
				}
				// The command gets the signal, and only then does the script end.
				testenv.Eventually(t, testenv.Soon, "the signal is taken", func() bool { return strings.Contains(out.String(), "cancelling") })
				testenv.WriteFile(t, filepath.Join(host.RunDir, "taken"), "")
				host.Faults()
				_ = cmd.Wait()
				if code := cmd.ProcessState.ExitCode(); code != 128+int(test.signal) {
					t.Fatalf("exit status %d\n%s", code, out)
				}
				testenv.NotDumped(t, job, images)
				testenv.NoWatcher(t, host)
			})
		})
	}
}

// TestCommandIsKilledAtAStep kills the command that serves criu with SIGKILL.
func TestCommandIsKilledAtAStep(t *testing.T) {
	testenv.Parallel(t)
	for _, step := range []string{"dump.lock", "dump.checkpoint", "dump.dumping", "dump.publish", "dump.checksums", "dump.dumped"} {
		t.Run(step, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				job := host.Start(1, "--spin", "stream-sync")
				images := testenv.NewImages(t)
				host.UseFailpoint(step + "=kill")
				err := host.CucriuCommand("dump", "-t", job.Root(), "-D", images).Run()
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.Exited() {
					t.Fatalf("the command was not killed: %v", err)
				}
				host.WaitOutcome("running")
				job.Runs()
				complete := step == "dump.dumped" // the image already has its final name
				if _, err := os.Stat(filepath.Join(images, "inventory.img")); (err == nil) != complete {
					t.Errorf("the image: %v", err)
				}
				testenv.NoWatcher(t, host)
				testenv.NoPartialImage(t, images)
			})
		})
	}
	for _, step := range []string{"restore.pre-restore", "restore.checksums", "restore.pre-resume", "restore.post-resume"} {
		t.Run(step, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				job := host.Start(1)
				images := host.Dump(job)
				host.UseFailpoint(step + "=kill")
				if err := host.CucriuCommand("restore", "-D", images).Run(); err == nil {
					t.Fatal("the command was not killed")
				}
				host.Setenv("CUCRIU_FAILPOINT", "")
				awaitCriu(t, host)
				if step == "restore.pre-resume" || step == "restore.post-resume" { // before, it has no watcher, and nothing to watch over
					testenv.Eventually(t, testenv.Soon, "the restore has an outcome", func() bool { return host.RestoreOutcome() != "" })
				}
				if host.RestoreOutcome() != "running" {
					testenv.Eventually(t, testenv.Soon, "the pid is free", job.Gone)
					testenv.Exits(t, host, 0, "restore", "-D", images)
				}
				job.Runs()
				for _, s := range host.Sessions() {
					if s.Outcome == "" {
						t.Errorf("a session is left open at step %s", s.Step)
					}
				}
			})
		})
	}
}

// awaitCriu waits until the criu of the latest session has ended, which hears of the end of a killed command. As
// long as it lives, a session without a watcher is left to it.
func awaitCriu(t *testing.T, host *testenv.Host) {
	t.Helper()
	sessions := host.Sessions()
	criu := sessions[len(sessions)-1].Criu.PID
	testenv.Eventually(t, testenv.Soon, "criu has ended", func() bool { return !lives(criu) })
}

func TestCommandDumpWhoseCriuIsKilled(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := testenv.NewImages(t)
		script := testenv.Script(t, `[ "$CRTOOLS_SCRIPT_ACTION" = post-dump ] && kill -9 $PPID; exit 0`)
		config := filepath.Join(t.TempDir(), "criu.conf")
		if err := os.WriteFile(config, []byte("action-script "+script+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		testenv.Exits(t, host, testenv.StatusFailed, "dump", "-t", job.Root(), "-D", images, "--criu-config", config)
		if got := host.LastOutcome(); got != "running" {
			t.Fatalf("outcome %q", got)
		}
		job.Runs()
	})
}

// TestCommandSaysHowACriuEndedThatDidNotAnswer: some lines of a configuration file make
// criu before 4.2 end like this.
func TestCommandSaysHowACriuEndedThatDidNotAnswer(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := testenv.NewImages(t)
		// The crashing criu reads the request first.
		crashing := testenv.Script(t, `[ "$1" != swrk ] || { dd bs=1 count=1 <&3 >/dev/null 2>&1; kill -SEGV $$; }
exec `+testenv.Criu(t)+` "$@"`)
		out, err := host.Cucriu("dump", "-t", job.Root(), "-D", images, "--criu", crashing)
		if err == nil || !strings.Contains(out, "criu exited without answering: criu: signal: segmentation fault") {
			t.Errorf("%v\n%s", err, out)
		}
		testenv.NotDumped(t, job, images)
		job.Runs()
	})
}

func TestCommandFailedDumpNamesCriusReason(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		// A deleted file that is too large for criu to dump by itself.
		job := host.StartUnder([]string{"/bin/sh", "-c", `gone=$(mktemp) && exec 3>"$gone"; rm "$gone"; head -c 3000000 /dev/zero >&3; "$@" & wait`, "sh"}, 1)
		images := testenv.NewImages(t)
		out := testenv.Exits(t, host, testenv.StatusFailed, "dump", "-t", job.Root(), "-D", images, "--no-auto")
		if !strings.Contains(out, "ghost") || !strings.Contains(out, "dump.log") {
			t.Errorf("the error names neither criu's reason nor its log:\n%s", out)
		}
		testenv.NotDumped(t, job, images)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images, "--ghost-limit", "4M", "--no-auto")
	})
}

func TestCommandRestoreThatFailsLateIsAnError(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := host.Dump(job)
		host.Faults("restore return 999")
		testenv.Exits(t, host, testenv.StatusFailed, "restore", "-D", images)
		testenv.Eventually(t, testenv.Soon, "the job is ended", job.Gone)
		host.Faults("")
		pidFile := filepath.Join(t.TempDir(), "pid")
		testenv.Exits(t, host, 0, "restore", "-D", images, "--pidfile", pidFile)
		job.Runs()
		if data, err := os.ReadFile(pidFile); err != nil || strings.TrimSpace(string(data)) != strconv.Itoa(job.PID) {
			t.Errorf("pid file: %q %v", data, err)
		}
	})
}

// TestAnOrphanedJobIsBroughtBackByTheNextDump: criu and the watcher were killed, and nobody
// has run cucriu recover.
func TestAnOrphanedJobIsBroughtBackByTheNextDump(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		held := testenv.HoldDump(t, host, job, "post-dump") // the hook, which has the lock of the session, has ended
		host.KillWatcher()
		if err := unix.Kill(held.PID(), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		_ = held.End()
		images := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
		if got := host.Sessions()[0].Outcome; got != journal.OutcomeRunning {
			t.Errorf("the orphaned session ended as %q", got)
		}
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		testenv.Exits(t, host, 0, "restore", "-D", images)
		job.Runs()
	})
}

// TestADumpToTheSameNameBringsTheJobBackFirst: only the partial image of a killed dump has
// the job's GPU state.
func TestADumpToTheSameNameBringsTheJobBackFirst(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := testenv.NewImages(t)
		host.UseFailpoint("dump.dumping=kill-watcher+kill")
		if err := host.CucriuCommand("dump", "-t", job.Root(), "-D", images).Run(); err == nil {
			t.Fatal("a killed dump succeeded")
		}
		if !host.Sessions()[0].Members[0].Pages.Dropped {
			t.Fatal("the GPU state is not in files alone")
		}
		host.Setenv("CUCRIU_FAILPOINT", "")
		awaitCriu(t, host)
		testenv.Eventually(t, testenv.Soon, "criu has let go of the job", job.Stopped)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		testenv.Exits(t, host, 0, "restore", "-D", images)
		job.Runs()
	})
}

// TestADirectoryFromWhichAJobMustYetBeBroughtBackIsRefused to another job.
func TestADirectoryFromWhichAJobMustYetBeBroughtBackIsRefused(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job, images := host.Start(1), t.TempDir()
		host.UseFailpoint("dump.dumping=kill-watcher+kill-criu+kill")
		if run := host.TryDump(job, images); run.Err == nil {
			t.Fatal("a killed dump succeeded")
		}
		testenv.Eventually(t, testenv.Soon, "criu has let go of the job", job.Stopped)
		other := host.Start(1)
		host.UseFailpoint("dump.back.fill=error")
		if run := host.TryDump(other, images); run.Err == nil || !strings.Contains(run.Log, "the only copy of the GPU state of an earlier dump's job") {
			t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
		}
		other.Runs()
		host.Setenv("CUCRIU_FAILPOINT", "")
		testenv.Exits(t, host, 0, "recover")
		job.Runs()
	})
}

// TestRecoverEndsWhatAKilledRestoreHasLeftBehind: nothing has recorded the root task that
// criu had forked. It would wait for criu, and keep its pid, for ever.
func TestRecoverEndsWhatAKilledRestoreHasLeftBehind(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\npages: criu\n")) // criu needs a while for the memory
		job := host.Start(1, "--mib", "128")
		images := host.Dump(job)
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		for attempt := 1; !killEarly(t, host, job, images); attempt++ {
			if attempt == 30 {
				t.Fatal("criu was never killed before the root had become the job")
			}
			_ = unix.Kill(job.PID, unix.SIGKILL)
			testenv.Exits(t, host, 0, "recover")
			testenv.Eventually(t, testenv.Soon, "nothing is left", job.Gone)
		}
		testenv.Exits(t, host, 0, "recover")
		testenv.Eventually(t, testenv.Soon, "nothing is left", job.Gone)
		host.Restore(images)
		job.Runs()
	})
}

// killEarly kills the watcher and the criu of a restore when the root task has just been
// forked. It reports whether that was early enough: whether the task still executes criu.
func killEarly(t *testing.T, host *testenv.Host, job *testenv.Job, images string) bool {
	t.Helper()
	gate := filepath.Join(t.TempDir(), "gate")
	hold := testenv.Script(t, `[ "$CRTOOLS_SCRIPT_ACTION" = pre-restore ] || exit 0
: >`+gate+`; while [ -e `+gate+` ]; do sleep 0.01; done`)
	criu := host.CriuCommandScripts("restore", images, []string{hold, host.HookBin}, "-d")
	if err := criu.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, testenv.Soon, "criu waits", func() bool { return testenv.Exists(gate) })
	host.KillWatcher()
	if err := os.Remove(gate); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, testenv.Soon, "criu has forked the root", job.Alive)
	_ = criu.Process.Kill()
	_ = criu.Wait()
	// Left alone, it runs for some milliseconds, until it has become the job.
	_ = unix.Kill(job.PID, unix.SIGSTOP)
	exe, err := os.Readlink(filepath.Join("/proc", job.Root(), "exe"))
	return err == nil && filepath.Base(exe) == "criu"
}

// TestACommandPrintsItsResult, and with -q nothing.
func TestACommandPrintsItsResult(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		if out := testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", testenv.NewImages(t), "-R"); strings.Contains(out, "checkpoint") || strings.Contains(out, "level=") {
			t.Errorf("more than the result:\n%s", out)
		}
		if out := testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", testenv.NewImages(t), "-R", "-q"); out != "" {
			t.Errorf("-q prints %q", out)
		}
		job.Runs()
	})
}

// TestCommandShowsProgressOnATerminal in one line that it rewrites.
func TestCommandShowsProgressOnATerminal(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--mib", "64")
		host.Faults("checkpoint delay 700ms")
		master, terminal := testenv.NewTerminal(t)
		cmd := host.CucriuCommand("dump", "-t", job.Root(), "-D", testenv.NewImages(t), "-R")
		cmd.Stderr = terminal
		if out, err := cmd.Output(); err != nil {
			t.Fatalf("cucriu dump: %v\n%s", err, out)
		}
		terminal.Close()
		shown, _ := io.ReadAll(master) // the read ends with EIO
		for _, want := range []string{"\r\x1b[Kmoving GPU memory into the processes", "\r\x1b[Kwaiting for the GPU to become idle"} {
			if !strings.Contains(string(shown), want) {
				t.Errorf("not shown: %q in %q", want, shown)
			}
		}
		job.Runs()
	})
}

// TestAReaderThatHasStoppedHoldsNoJob: neither its dump nor its restore waits until somebody reads what
// is said.
func TestAReaderThatHasStoppedHoldsNoJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		host.Setenv("CUCRIU_LOG", "debug")
		job := host.Start(1, "--mib", "8")
		images := testenv.NewImages(t)
		dump := host.CucriuCommand("dump", "-t", job.Root(), "-D", testenv.NewImages(t), "-R")
		dump.Stderr = testenv.StuckTerminal(t)
		if out, err := dump.Output(); err != nil {
			t.Fatalf("cucriu dump: %v\n%s", err, out)
		}
		job.Runs()
		for _, args := range [][]string{{"dump", "-t", job.Root(), "-D", images}, {"restore", "-D", images}} {
			cmd := host.CucriuCommand(args...)
			cmd.Stderr = testenv.StuckPipe(t)
			if out, err := cmd.Output(); err != nil {
				t.Fatalf("cucriu %v: %v\n%s", args, err, out)
			}
			if args[0] == "dump" {
				testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
			}
		}
		job.Runs()
	})
}

// TestParentDirectoriesOfAnImageAreMade, and only root can change them.
func TestParentDirectoriesOfAnImageAreMade(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		above := filepath.Join(t.TempDir(), "a", "b")
		images := filepath.Join(above, "images")
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images, "-R")
		testenv.WholeImage(t, images)
		for dir, mode := range map[string]os.FileMode{filepath.Dir(above): 0o755, above: 0o700, images: 0o700} {
			if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != mode {
				t.Errorf("%s: %v %v, want %v", dir, info.Mode(), err, mode)
			}
		}
		job.Runs()
	})
}
