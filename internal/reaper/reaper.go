// Package reaper runs a program again in a place where what criu has dumped can
// be restored: a restore needs the pids of the dump to be free. There the program
// is the child of an init that reaps every orphan, because a zombie holds its pid,
// and, unless a real driver forbids it, in a pid and a mount namespace of its own.
package reaper

import (
	"errors"
	"fmt"
	"math"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// SysProcAttr is what the process that is to call [Run] must be started with. It
// does not outlive the thread that starts it.
func SysProcAttr(namespaces bool) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if namespaces {
		attr.Cloneflags = unix.CLONE_NEWPID | unix.CLONE_NEWNS
	}
	return attr
}

// Run is the first process of the namespaces (or, without them, a subreaper): it
// starts this program again, with its arguments and environment, reaps until that
// has ended, and returns its exit status: 128 + n for signal n.
func Run(namespaces bool) (status int, err error) {
	if err := prepare(namespaces); err != nil {
		return 0, err
	}
	// Not os/exec: its Wait would compete with the reaping below.
	pid, err := syscall.ForkExec("/proc/self/exe", os.Args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return 0, err
	}
	for {
		var status unix.WaitStatus
		ended, err := unix.Wait4(-1, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, err
		}
		if ended == pid && (status.Exited() || status.Signaled()) {
			if status.Signaled() {
				return 128 + int(status.Signal()), nil
			}
			return status.ExitStatus(), nil
		}
	}
}

func prepare(namespaces bool) error {
	// What our caller left open belongs to no mount in here, and criu could not
	// dump a job that inherited it.
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close inherited descriptors: %w", err)
	}
	if !namespaces {
		return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}
