package cli

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/hooks"
	"cucriu/internal/testenv"
)

// Tests of the exit statuses that need real criu, several hosts, or a fault.

// TestAHostThatCannotTakeAnImage refuses it before criu has created anything. cucriu map
// and cucriu check say the same.
func TestAHostThatCannotTakeAnImage(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		source := testenv.NewHost(t, 2, "--mib-per-gpu", "64")
		job := source.Start(1, "--gpus", "0,1", "--mib", "40")
		images := source.Dump(job)
		for _, test := range []struct {
			name, says string
			host       func(*testing.T) *testenv.Host
		}{
			{"too few GPUs", "this host shows 1 (GPUs", func(t *testing.T) *testenv.Host { return testenv.NewHost(t, 1) }},
			{"another driver", "the image was made with driver", func(t *testing.T) *testenv.Host { return testenv.NewHost(t, 2, "--driver", "570") }},
			{"a driver without checkpoints", "570 or newer", func(t *testing.T) *testenv.Host { return testenv.NewHost(t, 2, "--driver", "550") }},
			{"no driver", "libcuda", func(t *testing.T) *testenv.Host {
				host := testenv.NewHost(t, 2)
				host.Setenv("CUCRIU_LIBCUDA", "/nonexistent/libcuda.so.1")
				return host
			}},
			{"too little GPU memory", "MiB free and the restore needs", func(t *testing.T) *testenv.Host {
				host := testenv.NewHost(t, 2, "--mib-per-gpu", "64")
				host.Start(1, "--gpus", "1", "--mib", "40")
				return host
			}},
			{"map to a GPU that is not there", "index 7", func(t *testing.T) *testenv.Host {
				host := testenv.NewHost(t, 2)
				host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\ngpus: {map: [{from: {index: 0}, to: {index: 7}}]}\n"))
				return host
			}},
			{"map of two to one", "both", func(t *testing.T) *testenv.Host {
				host := testenv.NewHost(t, 2)
				host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\ngpus: {map: [{from: {index: 0}, to: {index: 0}}, {from: {index: 1}, to: {index: 0}}]}\n"))
				return host
			}},
		} {
			t.Run(strings.ReplaceAll(test.name, " ", "-"), func(t *testing.T) {
				host := test.host(t)
				for _, command := range []string{"restore", "map", "check"} {
					testenv.FailingExits(t, host, testenv.StatusRefused, test.says, "", command, "-D", images)
				}
				if job.Alive() || len(host.Sessions()) > 0 {
					t.Errorf("the restore has begun: sessions %+v", host.Sessions())
				}
			})
		}
		source.Restore(images)
		job.Runs()
	})
}

// TestAResumeWithoutTheGPUMemoryIsRefused, and the job stays suspended.
func TestAResumeWithoutTheGPUMemoryIsRefused(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "64")
		job := host.Start(1, "--mib", "40")
		testenv.Exits(t, host, 0, "suspend", "-p", job.Root())
		other := host.Start(1, "--mib", "40")
		testenv.FailingExits(t, host, testenv.StatusRefused, "MiB free and the restore needs", "", "resume", "-p", job.Root())
		if !job.Stopped() || host.Step() != "suspended" {
			t.Errorf("the job is not suspended any more: %s", host.Step())
		}
		other.Kill()
		testenv.Eventually(t, testenv.Soon, "the other is gone", other.Gone)
		testenv.Exits(t, host, 0, "resume", "-p", job.Root())
		job.Runs()
	})
}

// TestAResumeThatFailedAfterTheRestoreIsTriedAgain, although the job holds its GPU memory
// again and there is no room for a second time as much.
func TestAResumeThatFailedAfterTheRestoreIsTriedAgain(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "64")
		job := host.Start(1, "--mib", "40")
		testenv.Exits(t, host, 0, "suspend", "-p", job.Root())
		testenv.FailingExits(t, host, testenv.StatusFailed, "as requested", "suspend.back.unlock=error", "resume", "-p", job.Root())
		testenv.Exits(t, host, 0, "resume", "-p", job.Root())
		job.Runs()
	})
}

// TestWhatIsFoundAfterTheLockIsAFailure, not a refusal, because something was touched.
func TestWhatIsFoundAfterTheLockIsAFailure(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		job := host.Start(1, "--gpus", "0,1")
		images := testenv.NewImages(t)
		host.Faults("lock hang")
		out := make(chan string, 1)
		cmd := host.CucriuCommand("dump", "-t", job.Root(), "-D", images)
		go func() {
			text, _ := cmd.CombinedOutput()
			out <- string(text)
		}()
		testenv.Eventually(t, testenv.Soon, "the job is being locked", func() bool { return host.Step() == "lock" })
		host.NVML("add 752")
		host.SilenceKernelModule()
		host.Faults()
		text := <-out
		if code := cmd.ProcessState.ExitCode(); code != testenv.StatusFailed || !strings.Contains(text, "found after the inspection: peer-memory") {
			t.Errorf("exit status %d\n%s", code, text)
		}
		testenv.NotDumped(t, job, images)
	})
}

// TestAJobThatIsNotBackYet: bringing it back fails until it is tried without the fault.
func TestAJobThatIsNotBackYet(t *testing.T) {
	testenv.Parallel(t)
	for _, test := range []struct{ name, point, command string }{
		{"dump", "dump.checkpoint=error,dump.back.unlock=error", "dump"},
		{"dump that criu fails", "dump.post-dump=error,dump.back.unlock=error", "dump"},
		{"suspend", "suspend.checkpoint=error,suspend.back.unlock=error", "suspend"},
	} {
		t.Run(strings.ReplaceAll(test.name, " ", "-"), func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nlock: {timeout: 6s, try: 1s}\n")) // how long a dump waits for the watcher
				job := host.Start(1)
				args := []string{"suspend", "-p", job.Root()}
				if test.command == "dump" {
					args = []string{"dump", "-t", job.Root(), "-D", testenv.NewImages(t)}
				}
				testenv.FailingExits(t, host, testenv.StatusNotBack, hooks.ErrNotBack.Error(), test.point, args...)
				if got := host.LastOutcome(); got != "" {
					t.Fatalf("the session is closed: %q", got)
				}
				host.KillWatcher()
				testenv.FailingExits(t, host, testenv.StatusNotBack, hooks.ErrNotBack.Error(), test.command+".back.unlock=error", "recover")
				if out := testenv.Exits(t, host, 0, "status"); !strings.Contains(out, "not recovered yet: ") {
					t.Errorf("cucriu status does not say why:\n%s", out)
				}
				testenv.Exits(t, host, 0, "recover")
				job.Runs()
			})
		})
	}
}

// TestARestoreThatIsGivenUpOnASignal leaves nothing of the job behind.
func TestARestoreThatIsGivenUpOnASignal(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := host.Dump(job)
		dir, config := t.TempDir(), filepath.Join(t.TempDir(), "criu.conf")
		reached, taken := filepath.Join(dir, "reached"), filepath.Join(dir, "taken")
		// criu before 4.2 reads the file twice, and so calls the script twice.
		hold := testenv.Script(t, `[ "$CRTOOLS_SCRIPT_ACTION" = pre-restore ] || exit 0
: >`+reached+`; until [ -e `+taken+` ]; do sleep 0.05; done`)
		testenv.WriteFile(t, config, "action-script "+hold+"\n")
		out := new(testenv.Output)
		cmd := host.CucriuCommand("restore", "-D", images, "--criu-config", config)
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "criu waits", func() bool { return testenv.Exists(reached) })
		if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "the signal is taken", func() bool { return strings.Contains(out.String(), "cancelling") })
		testenv.WriteFile(t, taken, "")
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 128+int(unix.SIGTERM) {
			t.Errorf("exit status %d\n%s", code, out)
		}
		testenv.Eventually(t, testenv.Soon, "no process of the job is left", job.Gone)
		testenv.Exits(t, host, 0, "restore", "-D", images)
		job.Runs()
	})
}
