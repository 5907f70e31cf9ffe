package cli

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// TestCtrlCSaysWhatItDid: what was begun is undone, or it came too late and changes nothing.
func TestCtrlCSaysWhatItDid(t *testing.T) {
	testenv.Parallel(t)
	const tooLate = "cucriu: got SIGINT too late: the "
	for _, test := range []struct {
		name, fault string
		args        []string // JOB stands for the job's pid
		before      []string // the command that comes first
		when        func(b *bench) bool
		status      int
		says        string
	}{
		{
			"dump, while it locks", "lock hang",
			[]string{"dump", "-t", "JOB", "-D", "images"},
			nil, atStep("lock"),
			128 + int(unix.SIGINT), "got SIGINT; the job keeps running\n",
		},
		{
			"dump, while the driver checkpoints", "checkpoint hang",
			[]string{"dump", "-t", "JOB", "-D", "images"},
			nil, atStep("checkpoint"),
			128 + int(unix.SIGINT), "checkpoint: got SIGINT: cancelled; the job keeps running\n",
		},
		{
			"dump -R, when it is dumped", "unlock hang",
			[]string{"dump", "-t", "JOB", "-D", "images", "-R"},
			nil, atStep("dumped"),
			0, tooLate + "dump is complete\n",
		},
		{
			"suspend, while it locks", "lock hang",
			[]string{"suspend", "-p", "JOB"},
			nil, atStep("lock"),
			128 + int(unix.SIGINT), "got SIGINT; the job keeps running\n",
		},
		{
			"suspend, while the driver checkpoints", "checkpoint hang",
			[]string{"suspend", "-p", "JOB"},
			nil, atStep("checkpoint"),
			128 + int(unix.SIGINT), "checkpoint: got SIGINT: cancelled; the job keeps running\n",
		},
		{
			"lock", "lock hang",
			[]string{"lock", "-p", "JOB"},
			nil, holdsWork,
			128 + int(unix.SIGINT), "; none is locked\n",
		},
		{
			"resume", "restore hang",
			[]string{"resume", "-p", "JOB"},
			[]string{"suspend", "-p", "JOB"},
			atStep("resume"),
			0, tooLate + "resume is complete\n",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				b := newBench(t)
				named := func(args []string) []string {
					return strings.Fields(strings.ReplaceAll(strings.Join(args, " "), "JOB", b.job.Root()))
				}
				if test.before != nil {
					if stdout, stderr, status := b.run(t, named(test.before)...); status != 0 {
						t.Fatalf("%s%s", stdout, stderr)
					}
				}
				b.Faults(test.fault)
				cmd, output := b.start(t, named(test.args)...)
				testenv.Eventually(t, testenv.Soon, "it has begun", func() bool { return test.when(b) })
				interrupt(t, cmd, output)
				b.Faults()
				_ = cmd.Wait()
				said := output.String()
				says := strings.ReplaceAll(test.says, "JOB", b.job.Root())
				if status := cmd.ProcessState.ExitCode(); status != test.status || !strings.Contains(said, "cucriu: got SIGINT: ") || !strings.Contains(said, says) {
					t.Errorf("exit status %d, want %d; want %q\n%s", status, test.status, says, said)
				}
				if test.status != 0 && (strings.Count(said, "error: ") != 1 || strings.Contains(said, "context canceled")) {
					t.Errorf("not one error:\n%s", said)
				}
				if strings.HasPrefix(test.name, "dump, ") {
					if stdout, stderr, status := b.run(t, "status", "-D", "images"); status != 1 || !strings.Contains(stderr, "the last dump did not succeed") {
						t.Errorf("exit status %d of cucriu status -D\n%s%s", status, stdout, stderr)
					}
				}
				if test.status != 0 && testenv.Exists(b.path("images")) {
					t.Error("there is an image")
				}
				b.job.Runs()
			})
		})
	}
}

// TestCtrlCDuringTheChecks: nothing was touched, and no library is blamed that was being asked.
func TestCtrlCDuringTheChecks(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		b := newBench(t)
		answers := filepath.Join(b.Dir, "nvml") // NVML reads it, and waits until somebody writes it
		if err := unix.Mkfifo(answers, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd, output := b.start(t, "dump", "-t", b.job.Root(), "-D", "images")
		testenv.Eventually(t, testenv.Soon, "criu has begun", func() bool {
			logs, err := filepath.Glob(filepath.Join(b.RunDir, "logs", "*", "dump.log"))
			return err == nil && len(logs) > 0 && hasOpened("libnvidia-ml")(b)
		})
		interrupt(t, cmd, output)
		_ = cmd.Wait()
		said := output.String()
		if status := cmd.ProcessState.ExitCode(); status != 128+int(unix.SIGINT) || strings.Contains(said, "nvml") ||
			!strings.Contains(said, "error: got SIGINT") || !strings.HasSuffix(said, "; nothing was touched\n") {
			t.Errorf("exit status %d\n%s", status, said)
		}
		b.job.Runs()
	})
}

// TestCtrlCDuringARestore: no process of the job is left, and the image is unchanged; or it was too
// late, and the job runs.
func TestCtrlCDuringARestore(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		b := newBench(t)
		other := b.Start(1, "--gpus", "1")
		b.dumped(t, other)
		hold := testenv.Script(t, `[ "$CRTOOLS_SCRIPT_ACTION" = pre-restore ] || exit 0; until [ -e `+b.path("taken")+` ]; do sleep 0.05; done`)
		config := b.write(t, "criu.conf", "action-script "+hold+"\n")
		cmd, output := b.start(t, "restore", "-D", "images", "--criu-config", config)
		testenv.Eventually(t, testenv.Soon, "criu restores", atStepOf(b, "pre-restore"))
		interrupt(t, cmd, output)
		b.write(t, "taken", "")
		_ = cmd.Wait()
		const says = "got SIGINT: cancelled at criu's stage "
		if status := cmd.ProcessState.ExitCode(); status != 128+int(unix.SIGINT) || !strings.Contains(output.String(), says) ||
			!strings.Contains(output.String(), "; this restore has left nothing running, and the image is unchanged\n") {
			t.Errorf("exit status %d, want one that says %q\n%s", status, says, output)
		}
		testenv.Eventually(t, testenv.Soon, "nothing is left", other.Gone)

		b.Faults("restore hang")
		cmd, output = b.start(t, "restore", "-D", "images")
		testenv.Eventually(t, testenv.Soon, "criu has restored", atStepOf(b, "post-resume"))
		interrupt(t, cmd, output)
		b.Faults()
		if err := cmd.Wait(); err != nil || !strings.Contains(output.String(), "got SIGINT too late: the restore is complete\n") {
			t.Errorf("%v\n%s", err, output)
		}
		other.Runs()
	})
}

func atStep(step string) func(*bench) bool {
	return func(b *bench) bool { return b.Step() == step }
}

func atStepOf(b *bench, step string) func() bool {
	return func() bool { return b.Step() == step }
}

// hasOpened reports whether cucriu has loaded a library: just before it calls it.
func hasOpened(library string) func(*bench) bool {
	return func(b *bench) bool {
		out, err := exec.Command("grep", "-l", library, "/proc/"+b.started+"/maps").Output()
		return err == nil && len(out) > 0
	}
}

// holdsWork reports whether a lock holds the job's GPU work.
func holdsWork(b *bench) bool {
	before := b.job.Ticks()
	time.Sleep(200 * time.Millisecond) // many ticks
	return slices.Equal(before, b.job.Ticks())
}

// interrupt sends SIGINT, and waits until the command has taken it.
func interrupt(t *testing.T, cmd *exec.Cmd, output *testenv.Output) {
	t.Helper()
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, testenv.Soon, "the signal is taken", func() bool { return strings.Contains(output.String(), "got SIGINT: ") })
}
