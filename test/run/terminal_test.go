package run

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// holderVariable names the folder of a job that this program is to be: see runHolder.
const holderVariable = "CUCRIU_RUN_TEST_HOLDER"

// runHolder holds a terminal and runs a shell on it, as tmux does: what is appended to the file typed is typed there,
// and what is to be seen is appended to the file screen. It ends with the status of the shell.
func runHolder(dir string) {
	err := func() error {
		master, slave, err := testenv.OpenTerminal()
		if err != nil {
			return err
		}
		shell := exec.Command("bash", "--norc", "--noediting")
		shell.Stdin, shell.Stdout, shell.Stderr = slave, slave, slave
		shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		if err := shell.Start(); err != nil {
			return err
		}
		slave.Close()
		go func() {
			for buffer := make([]byte, 4096); ; {
				n, err := master.Read(buffer)
				if err != nil {
					return
				}
				screen, err := os.OpenFile(filepath.Join(dir, "screen"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
				if err == nil {
					_, _ = screen.Write(buffer[:n])
					screen.Close()
				}
			}
		}()
		go func() {
			for at := 0; ; time.Sleep(tickEvery) {
				typed, _ := os.ReadFile(filepath.Join(dir, "typed"))
				n, _ := master.Write(typed[at:])
				at += n
			}
		}()
		return shell.Wait()
	}()
	if ended := new(exec.ExitError); errors.As(err, &ended) {
		os.Exit(ended.ExitCode())
	}
	fmt.Println("the shell has ended, or could not begin:", err)
	os.Exit(0)
}

// holder is a job that holds a terminal with a shell.
type holder struct {
	w      *world
	types  func(keys string)
	screen func() string
	status int // with which the job ends if its shell ends with 7
}

// asks types a line and waits for what is to follow. The pattern must not match the line itself.
func (h *holder) asks(line, pattern string) {
	h.w.t.Helper()
	seen := len(h.screen())
	h.types(line)
	testenv.Eventually(h.w.t, 3*testenv.Soon, fmt.Sprintf("%q is seen", pattern), func() bool {
		screen := h.screen()
		return len(screen) > seen && regexp.MustCompile(pattern).MatchString(screen[seen:])
	})
}

// newTMUX makes a world whose job is a tmux server. Its clients reach it in the job's sandbox by its socket.
func newTMUX(t *testing.T) *holder {
	program, err := exec.LookPath("tmux")
	if err != nil {
		t.Skip("tmux is not installed; the test's own holder of a terminal stands for it")
	}
	w := emptyWorld(t)
	socket := filepath.Join(w.work, "socket")
	w.host.Setenv("TMUX", "") // it may run in one
	w.command = []string{program, "-f", "/dev/null", "-S", socket, "new", "-d", "bash --norc --noediting"}
	w.flags = []string{"--every", "0", "--wait-all"}
	client := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), program, append([]string{"-S", socket}, args...)...)
		out, _ := cmd.Output() // there may be no server yet
		return string(out)
	}
	return &holder{
		w: w, status: 0,
		types:  func(keys string) { client("send-keys", "-l", keys) },
		screen: func() string { return strings.TrimRight(client("capture-pane", "-p", "-S", "-"), " \n") },
	}
}

// newHolder makes a world whose job is runHolder.
func newHolder(t *testing.T) *holder {
	w := newWorld(t)
	w.host.Setenv(jobVariable, "")
	w.host.Setenv(holderVariable, w.work)
	w.flags = []string{"--every", "0"}
	testenv.WriteFile(t, filepath.Join(w.work, "typed"), "")
	return &holder{
		w: w, status: 7,
		types: func(keys string) {
			f, err := os.OpenFile(filepath.Join(w.work, "typed"), os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteString(keys); err != nil {
				t.Fatal(err)
			}
		},
		screen: func() string { text, _ := os.ReadFile(filepath.Join(w.work, "screen")); return string(text) },
	}
}

// TestAJobHasItsTerminalAgain in tmux, or in another program that is the job and holds it: with its modes, its
// foreground job and its stopped ones.
func TestAJobHasItsTerminalAgain(t *testing.T) {
	for name, newHolder := range map[string]func(*testing.T) *holder{"tmux": newTMUX, "holder": newHolder} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				h := newHolder(t)
				w := h.w
				r := w.run()
				r.awaits("the shell is ready", func() bool { return regexp.MustCompile(`[$#]`).MatchString(h.screen()) })
				h.types("sleep 1000\r")
				r.awaits("the job sleeps", func() bool { return runsCommand("sleep 1000") })
				h.asks("\x1a", `Stopped`)
				h.asks("stty -echo; X=kept; echo don''e\r", `done\s`)
				h.types("sleep 2000\r")
				r.awaits("the job sleeps", func() bool { return runsCommand("sleep 2000") })
				r.signal(unix.SIGTERM)
				r.ends(75)
				w.nothingLeft()

				r = w.run()
				r.says("resumes from checkpoint 000001")
				r.awaits("the job sleeps on", func() bool { return runsCommand("sleep 2000") })
				h.types("\x03") // ends what is in the foreground
				r.awaits("the foreground is the shell's", func() bool { return !runsCommand("sleep 2000") })
				h.asks("tty; echo \"is $X\"; jobs\r", `(?s)/dev/pts/\d+\s.*is kept\s.*Stopped +sleep 1000`)
				h.asks("stty -a | grep -o -e -echo' '; stty echo; fg\r", `(?s)-echo.*sleep 1000`)
				// bash says so before it does it
				r.awaits("the job sleeps on in the foreground", func() bool { return continued("sleep 1000") })
				h.asks("\x03", `\^C`)
				h.types("exit 7\r")
				r.ends(h.status)
				w.nothingLeft()
			})
		})
	}
}

// runsCommand reports whether there is a process with this command line.
func runsCommand(command string) bool {
	return slices.ContainsFunc(testenv.PIDs(), func(pid int) bool {
		return strings.Join(testenv.CommandLine(pid), " ") == command
	})
}

// continued reports whether there is a process with this command line that is not stopped.
func continued(command string) bool {
	return slices.ContainsFunc(testenv.PIDs(), func(pid int) bool {
		if strings.Join(testenv.CommandLine(pid), " ") != command {
			return false
		}
		process, err := procfs.NewProc(pid)
		if err != nil {
			return false
		}
		stat, err := process.Stat()
		return err == nil && stat.State != "T"
	})
}

// TestATerminalOfAnEarlierVersionStays: cucriu run --tty gave the job a terminal, and recorded that in its directory.
// Such a job is started and resumed as it was, without --tty and with a terminal at which nobody sits. Only the paths
// in the recorded files are this test's.
func TestATerminalOfAnEarlierVersionStays(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		if err := os.Mkdir(w.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		testenv.WriteFile(t, filepath.Join(w.dir, "job.json"), fmt.Sprintf(`{
	"version": 1,
	"name": "train",
	"dir": %q,
	"command": [
		"bash",
		"-c",
		"tty; echo begun; trap 'tty; exit 3' USR1; while :; do sleep 0.1; done"
	],
	"work_dir": %q,
	"begun": "2026-11-30T02:57:06.486567271Z",
	"input": "terminal"
}
`, w.dir, w.work))
		testenv.WriteFile(t, filepath.Join(w.dir, "flags.json"), `[
	"--every=0s",
	"--tty=true"
]
`)
		output := func() string { text, _ := os.ReadFile(filepath.Join(w.dir, "output.log")); return string(text) }
		r := w.again()
		r.awaits("the job has begun", func() bool { return strings.Contains(output(), "begun") })
		w.again("--tty").ends(2, "a job has its terminal from tmux")
		r.signal(unix.SIGTERM)
		r.ends(75)
		r = w.again()
		r.says("train resumes from checkpoint 000001")
		r.kill() // whoever takes the job under care finds it at its terminal
		r = w.again()
		r.says("it is supervised again")
		r.signal(unix.SIGUSR1)
		r.ends(3)
		if !regexp.MustCompile(`^(/dev/pts/\d+)\r\nbegun\r\n(/dev/pts/\d+)\r\n$`).MatchString(output()) {
			t.Errorf("%q", output())
		}
		w.nothingLeft()
	})
}
