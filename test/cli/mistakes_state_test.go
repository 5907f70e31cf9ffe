package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/internal/core/journal"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

func TestMistakesAboutWhatIsSuspendedOrLocked(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		b := newBench(t)
		root := b.job.Root()
		b.make(t,
			mistake{"resume of what runs", []string{"resume", "-p", root}, 0, "nothing to resume: already running"},
			mistake{"resume of what runs, to another GPU", []string{"resume", "-p", root, "--map", "0=1"}, refused, "nothing to resume: already running, so --map has no effect"},
			mistake{"unlock of what runs", []string{"unlock", "-p", root}, 0, ""},
			mistake{"recover of nothing", []string{"recover"}, 0, "nothing to recover"},
			mistake{"timeline of no session", []string{"inspect", "--timeline", "--session", "nobody"}, refused, "cucriu status lists them"},
		)
		other := b.Start(1, "--gpus", "1")
		pid := other.Root()
		done := func(args ...string) {
			t.Helper()
			if stdout, stderr, status := b.run(t, args...); status != 0 {
				t.Fatalf("%v: %s%s", args, stdout, stderr)
			}
		}
		done("lock", "-p", pid)
		unlocks := "cucriu unlock -p " + pid + " lets it run again"
		b.make(t,
			mistake{"lock twice", []string{"lock", "-p", pid}, refused, unlocks},
			mistake{"dump of what is locked", []string{"dump", "-t", pid, "-D", "images"}, refused, unlocks},
			mistake{"recover of what is locked", []string{"recover"}, 0, "process " + pid + " (cudawork) is locked: " + unlocks},
			mistake{"suspend of what is locked", []string{"suspend", "-p", pid}, refused, unlocks},
		)
		done("unlock", "-p", pid)
		other.Runs()

		done("suspend", "-p", pid)
		resumes := "resume it with cucriu resume -p " + pid
		b.make(t,
			mistake{"suspend twice", []string{"suspend", "-p", pid}, refused, resumes},
			mistake{"lock of what is suspended", []string{"lock", "-p", pid}, refused, resumes},
			mistake{"unlock of what is suspended", []string{"unlock", "-p", pid}, refused, resumes},
			mistake{"dump of what is suspended", []string{"dump", "-t", pid, "-D", "images"}, refused, resumes},
			mistake{"resume to a GPU that is not here", []string{"resume", "-p", pid, "--map", "{from: {index: 0}, to: {index: 9}}"}, refused, "index 9"},
			mistake{"resume from a GPU that the job did not see", []string{"resume", "-p", pid, "--map", "9=0"}, refused, "--map: the job saw 2 GPUs, there is no index 9"},
			mistake{"recover is not resume", []string{"recover"}, 0, "nothing to recover"},
		)
		if !other.Stopped() {
			t.Error("what is suspended runs")
		}
		done("resume", "-p", pid)
		other.Runs()
	})
}

// TestSomethingElseHasCheckpointedIt: nobody here knows how it came to that.
func TestSomethingElseHasCheckpointedIt(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		b := newBench(t)
		other := b.Start(1, "--gpus", "1")
		pid := other.Root()
		process := b.Driver().Process(other.PID)
		if err := process.Lock(t.Context(), cudackpt.LockOptions{Timeout: testenv.Soon}); err != nil {
			t.Fatal(err)
		}
		// A thread that had launched before the lock must not synchronize after the checkpoint.
		testenv.Eventually(t, testenv.Soon, "it waits at the lock", func() bool {
			states, err := proc.ThreadStates(other.PID)
			return err == nil && !strings.ContainsAny(states, "RD")
		})
		if err := process.Checkpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
		forces := "cucriu resume -p " + pid + " --force"
		b.make(t,
			mistake{"dump", []string{"dump", "-t", pid, "-D", "images"}, refused, forces},
			mistake{"suspend", []string{"suspend", "-p", pid}, refused, forces},
			mistake{"unlock", []string{"unlock", "-p", pid}, refused, forces},
			mistake{"resume", []string{"resume", "-p", pid}, refused, "free its GPUs and use --force"},
		)
		if stdout, stderr, status := b.run(t, "resume", "-p", pid, "--force"); status != 0 {
			t.Fatalf("%s%s", stdout, stderr)
		}
		other.Runs()
	})
}

// TestManagedMemoryIsNotSaidToBeLocked: the driver leaves it locked, and cucriu has unlocked it
// by the time that anybody reads the error.
func TestManagedMemoryIsNotSaidToBeLocked(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		b := newBench(t)
		managed := b.Start(1, "--gpus", "1", "--managed")
		for _, args := range [][]string{{"dump", "-t", managed.Root(), "-D", "images"}, {"suspend", "-p", managed.Root()}} {
			_, stderr, status := b.run(t, args...)
			oneError(t, stderr, "managed memory (cudaMallocManaged)")
			if status != 1 || strings.Contains(stderr, "lock it") || !strings.HasSuffix(stderr, "; the job keeps running\n") {
				t.Errorf("%s: exit status %d\n%s", args[0], status, stderr)
			}
			managed.Runs()
		}
	})
}

// TestAJobThatWasStoppedIsNotSaidToRun: it stays stopped, whatever fails.
func TestAJobThatWasStoppedIsNotSaidToRun(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		b := newBench(t)
		other := b.Start(1, "--gpus", "1")
		other.Signal(unix.SIGSTOP)
		testenv.Eventually(t, testenv.Soon, "it stops", other.Stopped)
		b.Faults("checkpoint return 999")
		_, stderr, status := b.run(t, "dump", "-t", other.Root(), "-D", "images")
		oneError(t, stderr, "; the job is stopped, as it was before")
		b.Faults()
		stdout, _, leftRunning := b.run(t, "dump", "-t", other.Root(), "-D", "images", "-R")
		if status != 1 || leftRunning != 0 || !strings.Contains(stdout, "left stopped as before") {
			t.Errorf("exit status %d, then %d\n%s", status, leftRunning, stdout)
		}
		if !other.Stopped() {
			t.Error("it runs")
		}
	})
}

// TestMistakesOfAUserWhoIsNotRoot: one line, before anything else, and nothing is made.
func TestMistakesOfAUserWhoIsNotRoot(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		b := newBench(t)
		home, err := os.MkdirTemp("/tmp", "cucriu-user-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(home) })
		program := filepath.Join(home, "cucriu")
		data, err := os.ReadFile(b.CucriuCommand().Path)
		if err == nil {
			err = os.WriteFile(program, data, 0o755)
		}
		if err == nil {
			err = os.Chmod(home, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		images, pid := filepath.Join(home, "images"), b.job.Root()
		for _, args := range [][]string{
			{"dump", "-t", pid, "-D", images},
			{"dump"},
			{"restore", "-D", images},
			{"status"},
			{"recover"},
			{"check", "-t", pid},
			{"gpus", "-p", pid},
			{"state", "-p", pid},
			{"lock", "-p", pid},
			{"unlock", "-p", pid},
			{"suspend", "-p", pid},
			{"resume", "-p", pid},
		} {
			t.Run(strings.Join(args[:min(2, len(args))], " "), func(t *testing.T) {
				cmd := exec.Command("setpriv", append([]string{"--reuid", "12345", "--regid", "12345", "--clear-groups", program}, args...)...)
				cmd.Env = append(b.Env, "HOME="+home) // CUCRIU_CONFIG is root's, and cannot be read
				cmd.Dir = "/"
				_, stderr, status := result(t, cmd)
				if want := "cucriu: error: run as root: user 12345 cannot use cucriu " + args[0] + "\n"; status != refused || stderr != want {
					t.Errorf("exit status %d, and it says\n%swant\n%s", status, stderr, want)
				}
			})
		}
		if testenv.Exists(b.RunDir) || testenv.Exists(images) {
			t.Error("something was made")
		}
		b.job.Runs()
	})
}

// TestMistakesWhileADumpIsAtWork: a second dump into the same directory, or of a job that the first
// one will end, is refused at once. So is one with a run directory that others can write.
func TestMistakesWhileADumpIsAtWork(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		b := newBench(t)
		other := b.Start(1, "--gpus", "1")
		b.Faults("checkpoint delay 2s")
		first := b.CucriuCommand("dump", "-t", other.Root(), "-D", b.path("images"))
		if err := first.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "it has begun", func() bool {
			all := b.Sessions()
			return len(all) == 1 && all[0].Step == journal.StepCheckpoint
		})
		by := strconv.Itoa(first.Process.Pid)
		for says, args := range map[string][]string{
			"is being dumped by process " + by + ", which will end it":             {"dump", "-t", other.Root(), "-D", "others"},
			"images is at work (process " + by + "): name another image directory": {"dump", "-t", b.job.Root(), "-D", "images"},
		} {
			stdout, stderr, status := b.run(t, args...)
			if status != refused || !strings.Contains(stderr, says) {
				t.Errorf("exit status %d, want %q:\n%s%s", status, says, stdout, stderr)
			}
		}
		if err := first.Wait(); err != nil {
			t.Error(err)
		}
		b.Faults()
		b.job.Runs()
		if err := unix.Chmod(b.RunDir, 0o1777); err != nil {
			t.Fatal(err)
		}
		_, stderr, status := b.run(t, "dump", "-t", b.job.Root(), "-D", "others")
		if want := "run directory " + b.RunDir + " has mode 1777: chmod 0700 " + b.RunDir; status != refused || !strings.Contains(stderr, want) {
			t.Errorf("exit status %d, want %q:\n%s", status, want, stderr)
		}
	})
}

// TestMistakesAboutTheHook: somebody runs criu without it.
func TestMistakesAboutTheHook(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		b := newBench(t)
		other := b.Start(1, "--gpus", "1")
		criu := func(args ...string) error {
			cmd := b.Command(testenv.Criu(t), append(args, "-D", b.path("images"), "--file-locks")...)
			cmd.Dir = b.dir
			return cmd.Run()
		}
		if err := os.Mkdir(b.path("images"), 0o700); err != nil {
			t.Fatal(err)
		}
		if criu("dump", "-t", other.Root()) == nil {
			t.Error("criu alone dumps a CUDA process")
		}
		other.Runs()
		if err := os.RemoveAll(b.path("images")); err != nil {
			t.Fatal(err)
		}

		b.dumped(t, other)
		if err := criu("restore", "-d"); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "it stands still", other.Stopped)
		b.make(t,
			mistake{"resume", []string{"resume", "-p", other.Root()}, refused, "without cucriu-hook, and can never run: kill -9 "},
			mistake{"the remedy", []string{"suspend", "-p", other.Root()}, refused, ", then cucriu restore -D " + b.path("images")},
		)
		other.Kill()
		if stdout, stderr, status := b.run(t, "restore", "-D", "images"); status != 0 {
			t.Fatalf("%s%s", stdout, stderr)
		}
		other.Runs()
		// The hook itself, started by hand.
		_, stderr, status := result(t, b.Command(b.HookBin))
		if status != 1 || !strings.Contains(stderr, "this program is an action script of criu") {
			t.Errorf("exit status %d\n%s", status, stderr)
		}
	})
}
