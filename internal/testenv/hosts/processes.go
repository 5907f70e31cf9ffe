package hosts

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// Process is a process on a host.
type Process struct {
	Host   *Host
	PID    int // on the host; in the place of a job it has another one
	Outer  int // as the test sees it
	Parent int // as the test sees it
	Args   []string
}

// processes lists the pids of what runs in the host's network, or in a pid namespace below the host's, as the test sees
// them.
func (h *Host) processes() []int {
	var own unix.Stat_t
	if err := unix.Fstat(int(h.network.ns), &own); err != nil {
		return nil
	}
	return slices.DeleteFunc(testenv.PIDs(), func(pid int) bool {
		var stat unix.Stat_t
		err := unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &stat)
		isIn := err == nil && stat.Ino == own.Ino && stat.Dev == own.Dev
		return pid == os.Getpid() || !isIn && !h.hasBelow(pid)
	})
}

// hasBelow reports whether a process is in a pid namespace below that of the host.
func (h *Host) hasBelow(pid int) bool {
	var own, at unix.Stat_t
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil || h.init == nil || unix.Stat(fmt.Sprintf("/proc/%d/ns/pid", h.init.Process.Pid), &own) != nil {
		return false
	}
	for {
		err := unix.Fstat(int(space.Fd()), &at)
		if err == nil && at.Ino == own.Ino && at.Dev == own.Dev {
			space.Close()
			return true
		}
		above, parentErr := unix.IoctlRetInt(int(space.Fd()), unix.NS_GET_PARENT)
		space.Close()
		if err != nil || parentErr != nil { // that of the test
			return false
		}
		space = os.NewFile(uintptr(above), "pid namespace")
	}
}

// Processes lists what runs on the host, without zombies.
func (h *Host) Processes() []Process {
	var all []Process
	for _, pid := range h.processes() {
		if p, ok := h.process(pid); ok {
			all = append(all, p)
		}
	}
	return all
}

func (h *Host) process(outer int) (Process, bool) {
	p := Process{Host: h, Outer: outer}
	status, err := proc.ReadStatus(outer)
	p.Args = testenv.CommandLine(outer)
	if err != nil || p.Args[0] == "" { // it is gone, or ending
		return p, false
	}
	p.Parent = status.PPID
	// That of the test, that of the host, and perhaps that of a place.
	p.PID = status.NSPID[min(1, len(status.NSPID)-1)]
	return p, true
}

// Find lists the processes on the host whose command line contains all of these texts.
func (h *Host) Find(texts ...string) []Process {
	var found []Process
	for _, p := range h.Processes() {
		line, fits := strings.Join(p.Args, " "), true
		for _, text := range texts {
			fits = fits && strings.Contains(line, text)
		}
		// nsenter, which waits for a command, has that in its own command line.
		if fits && filepath.Base(p.Args[0]) != "nsenter" {
			found = append(found, p)
		}
	}
	return found
}

// Kill kills a process, and nothing else.
func (p Process) Kill() error { return unix.Kill(p.Outer, unix.SIGKILL) }

// Held says why the process does not run: a thread is stopped, traced or parked. It is
// empty if it runs.
func (p Process) Held() string { return testenv.HeldThread(p.Outer) }

// has reports whether the process was started with a variable.
func (p Process) has(variable string) bool {
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.Outer))
	return err == nil && bytes.Contains(append([]byte{0}, environ...), []byte("\x00"+variable+"\x00"))
}
