package run

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// person sits at a terminal.
type person struct {
	t     *testing.T
	ours  *os.File // what they type, and see
	mutex sync.Mutex
	seen  strings.Builder
}

// sitDown opens a terminal of 30 lines. slave is the end for a program.
func sitDown(t *testing.T) (p *person, slave *os.File) {
	t.Helper()
	master, slave := testenv.NewTerminal(t)
	p = &person{t: t, ours: master}
	p.resize(30, 100)
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := master.Read(buffer)
			if err != nil {
				return
			}
			p.mutex.Lock()
			p.seen.Write(buffer[:n])
			p.mutex.Unlock()
		}
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("on the terminal:\n%q", p.screen())
		}
	})
	return p, slave
}

func (p *person) resize(rows, columns uint16) {
	p.t.Helper()
	if err := unix.IoctlSetWinsize(int(p.ours.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *person) screen() string {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.seen.String()
}

func (p *person) types(keys string) {
	p.t.Helper()
	if _, err := p.ours.WriteString(keys); err != nil {
		p.t.Fatal(err)
	}
}

// sees waits until something new is on the screen.
func (p *person) sees(pattern string, from int) {
	p.t.Helper()
	testenv.Eventually(p.t, 3*testenv.Soon, fmt.Sprintf("%q is seen", pattern), func() bool {
		return regexp.MustCompile(pattern).MatchString(p.screen()[from:])
	})
}

// asks types a line and waits for what is to follow. The pattern must not match the line itself.
func (p *person) asks(line, pattern string) {
	p.t.Helper()
	from := len(p.screen())
	p.types(line)
	p.sees(pattern, from)
}

// runOn starts a supervisor on a terminal of its session.
func (w *world) runOn(terminal *os.File) *run {
	w.t.Helper()
	cmd := w.host.CucriuCommand(append(append([]string{"run", "--dir", w.dir}, append(w.flags, "--tty", "--")...), w.command...)...)
	cmd.Stdin, cmd.Stdout = terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	return w.start(cmd, w.flags)
}

// runInGroup starts a supervisor as a shell does that can stop it and continue it.
func (w *world) runInGroup() *run {
	w.t.Helper()
	cmd := w.host.CucriuCommand(append(append([]string{"run", "--dir", w.dir}, append(w.flags, "--")...), w.command...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return w.start(cmd, w.flags)
}

func modes(t *testing.T, terminal *os.File) unix.Termios {
	t.Helper()
	now, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *now
}

// TestAJobHasItsTerminalAgain with its modes, its foreground job and its stopped ones, on another
// pseudo terminal of another size; and those who sit at it find their own as it was.
func TestAJobHasItsTerminalAgain(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		w.command = []string{"bash", "--norc", "--noediting"}
		w.flags = []string{"--every", "0"}
		p, terminal := sitDown(t)
		before := modes(t, terminal)
		r := w.runOn(terminal)
		p.sees(`\$ |# `, 0)
		p.asks("stty size\r", `30 100\r`)
		p.resize(40, 120)
		p.asks("until stty size | grep '^40 120$'; do sleep 0.1; done\r", `40 120\r`) // the supervisor passes it on
		p.types("sleep 1000\r")
		r.awaits("the job sleeps", func() bool { return runsCommand(t, "sleep 1000") })
		p.asks("\x1a", `Stopped`)
		p.asks("stty -echo; X=kept; echo don''e\r", `done\r`)
		p.types("sleep 2000\r")
		r.awaits("the job sleeps", func() bool { return runsCommand(t, "sleep 2000") })
		r.signal(unix.SIGTERM)
		r.ends(75)
		if now := modes(t, terminal); now != before {
			t.Errorf("the terminal was left in %+v, and was in %+v", now, before)
		}
		w.nothingLeft()

		sitDown(t) // takes a number
		p.resize(25, 80)
		r = w.runOn(terminal)
		r.says("resumes from checkpoint 000001")
		r.awaits("the terminal is joined to the job's", func() bool { return modes(t, terminal) != before })
		p.types("\x03") // ends what is in the foreground
		p.asks("stty size; echo \"is $X\"; jobs\r", `(?s)25 80\r.*is kept\r.*Stopped +sleep 1000\r`)
		p.asks("stty -a | grep -o -e -echo' '; stty echo; fg\r", `(?s)-echo .*sleep 1000\r`)
		r.awaits("the job sleeps on in the foreground", func() bool { return continued(t, "sleep 1000") }) // bash says so before it does it
		p.asks("\x03", `\^C`)

		// Whoever takes the job under care finds it at its terminal.
		r.kill()
		if err := unix.IoctlSetTermios(int(terminal.Fd()), unix.TCSETS, &before); err != nil {
			t.Fatal(err)
		}
		r = w.runOn(terminal)
		r.says("it is supervised again")
		p.asks("echo \"is $X\"\r", `is kept\r`)
		p.types("\rkill %1 2>/dev/null; exit 7\r")
		r.ends(7)
		w.nothingLeft()
	})
}

// runsCommand reports whether there is a process with this command line.
func runsCommand(t *testing.T, command string) bool {
	for _, pid := range testenv.PIDs() {
		if strings.Join(testenv.CommandLine(pid), " ") == command {
			return true
		}
	}
	return false
}

// continued reports whether there is a process with this command line that is not stopped.
func continued(t *testing.T, command string) bool {
	for _, pid := range testenv.PIDs() {
		if strings.Join(testenv.CommandLine(pid), " ") == command {
			process, err := procfs.NewProc(pid)
			if err != nil {
				return false
			}
			stat, err := process.Stat()
			return err == nil && stat.State != "T"
		}
	}
	return false
}

// TestAJobHasATerminalAtWhichNobodySits, for example under a batch system.
func TestAJobHasATerminalAtWhichNobodySits(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		w.command = []string{"sh", "-c", "tty; stty size; echo last; exit 3"}
		r := w.run("--tty", "--every", "0")
		r.ends(3)
		data, err := os.ReadFile(r.out)
		if err != nil || !regexp.MustCompile(`^/dev/pts/\d+\r\n24 80\r\nlast\r\n$`).Match(data) {
			t.Errorf("%q, %v", data, err)
		}
		w.nothingLeft()
	})
}
