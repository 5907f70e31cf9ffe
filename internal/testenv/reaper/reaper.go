// Package reaper runs a program again where criu can restore what it has dumped. A restore
// needs the pids of the dump to be free. So the program runs as the child of an init that
// reaps every orphan, because a zombie keeps its pid. It also gets a pid and a mount
// namespace of its own, unless a real driver does not allow that.
package reaper

import (
	"errors"
	"fmt"
	"math"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// SysProcAttr returns the attributes with which the process that calls [Run] must be
// started. That process is killed when the thread that started it ends.
func SysProcAttr(namespaces bool) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if namespaces {
		attr.Cloneflags = unix.CLONE_NEWPID | unix.CLONE_NEWNS
	}
	return attr
}

// Run is the first process of the namespaces or, without them, a subreaper. It starts this
// program again with the same arguments and environment, reaps until that has ended, and
// returns its exit status, or 128 + n if signal n killed it.
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
	// Descriptors that our caller left open belong to no mount in here. criu could not dump
	// a job that inherited them.
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
