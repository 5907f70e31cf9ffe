package dump

import (
	"bufio"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// TestCtrlZWaitsUntilTheJobIsNotHeld, and then stops the command.
func TestCtrlZWaitsUntilTheJobIsNotHeld(t *testing.T) {
	testenv.Parallel(t)
	for _, command := range []string{"dump", "restore", "suspend"} {
		t.Run(command, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				job := host.Start(1)
				marks := t.TempDir()
				wait := "run " + testenv.WaitsForGo(t, marks)
				args, point := []string{"dump", "-t", job.Root(), "-D", testenv.NewImages(t), "-R"}, "dump.manifest"
				switch command {
				case "restore":
					args, point = []string{"restore", "-D", host.Dump(job)}, "restore.post-resume"
				case "suspend":
					args, point = []string{"suspend", "-p", job.Root()}, "suspend.checkpoint"
				}
				host.UseFailpoint(point + "=" + wait)
				cmd := host.CucriuCommand(args...)
				cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as a shell starts it
				out, err := cmd.StderrPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				running := testenv.JobOf(t, cmd.Process.Pid)
				testenv.Eventually(t, testenv.Soon, "the command is in the middle of its work", func() bool { return testenv.Exists(filepath.Join(marks, "reached")) })
				if err := cmd.Process.Signal(unix.SIGTSTP); err != nil {
					t.Fatal(err)
				}
				said := make(chan bool, 1)
				go func() {
					for lines := bufio.NewScanner(out); lines.Scan(); {
						if strings.Contains(lines.Text(), "got SIGTSTP") {
							said <- true
						}
					}
				}()
				testenv.Eventually(t, testenv.Soon, "it says that it waits, and runs", func() bool { return len(said) > 0 && !running.Stopped() })
				testenv.WriteFile(t, filepath.Join(marks, "go"), "")

				testenv.Eventually(t, testenv.Soon, "it stops", running.Stopped)
				if command == "suspend" {
					if host.Step() != "suspended" {
						t.Errorf("step %s", host.Step())
					}
				} else {
					job.Runs()
				}
				if err := cmd.Process.Signal(unix.SIGCONT); err != nil {
					t.Fatal(err)
				}
				if err := cmd.Wait(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
