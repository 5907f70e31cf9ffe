package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// ErrGone says that a process has ended. Its parent may not have reaped it yet, and its pid
// may already name another process.
var ErrGone = errors.New("process has ended")

// Ident names one incarnation of a process on this boot of the host.
type Ident struct {
	PID int `json:"pid"`
	// StartTime is in clock ticks since the host booted: field 22 of /proc/PID/stat, less
	// the offset that the reader's time namespace adds.
	StartTime uint64 `json:"start_time"`
	// PIDNamespace is the inode of the namespace in which the process has the pid; 0 if that cannot
	// be read.
	PIDNamespace uint64 `json:"pid_namespace,omitempty"`
}

func (id Ident) String() string { return fmt.Sprintf("process %d", id.PID) }

// Alive reports whether the process lives, as far as that can be told from here, and is not about to end.
func (id Ident) Alive() bool {
	process, err := Reopen(id)
	if err == nil {
		defer process.Close()
		return !process.Exiting()
	}
	return !errors.Is(err, ErrGone)
}

// Began returns when the clock tick ended in which the process began, as the caller's clock has it now.
func (id Ident) Began() (time.Time, error) {
	offset, err := boottimeTicks()
	var now unix.Timespec
	if err == nil {
		err = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now)
	}
	began := (int64(id.StartTime) + offset + 1) * nanosPerTick
	return time.Now().Add(-time.Duration(now.Nano() - began)).UTC(), err
}

// BeganAfter reports whether the process began after a time on the caller's boot clock, or in the same clock tick.
func (id Ident) BeganAfter(boottime time.Duration) (bool, error) {
	offset, err := boottimeTicks()
	return id.StartTime >= uint64(boottime.Nanoseconds()/nanosPerTick-offset), err
}

// Process is a process held by a pidfd. A signal sent through it reaches this process or
// none, even if its pid is reused.
type Process struct {
	Ident
	pidfd *os.File
}

// Open opens the process that has the pid now. It fails with [ErrGone] if there is none or
// it has ended.
func Open(pid int) (*Process, error) {
	if pid <= 0 {
		return nil, fmt.Errorf("pid %d: a pid must be positive", pid)
	}
	// Nonblocking, so that the Go runtime can wait for the end of the process with epoll.
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("pidfd of process %d: %w", pid, err)
	}
	p := &Process{Ident: Ident{PID: pid, PIDNamespace: ownPIDNamespace()}, pidfd: os.NewFile(uintptr(fd), "pidfd")}
	if p.StartTime, err = startTime(pid); err == nil && !p.Alive() {
		// The start time may be that of a successor with the same pid.
		err = fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// IdentOf is the identity of a process that has not ended: see [Open].
func IdentOf(pid int) (Ident, error) {
	process, err := Open(pid)
	if err != nil {
		return Ident{}, err
	}
	return process.Ident, process.Close()
}

// Reopen opens exactly the process that id names. It fails with [ErrGone] if that process
// has ended, and with [ErrElsewhere] if nothing can be said about it from here.
func Reopen(id Ident) (*Process, error) {
	if id.Elsewhere() {
		return nil, fmt.Errorf("%v: %w", id, ErrElsewhere)
	}
	p, err := Open(id.PID)
	if err != nil {
		return nil, err
	}
	if p.StartTime != id.StartTime {
		p.Close()
		return nil, fmt.Errorf("%v: %w: its pid now belongs to another process", id, ErrGone)
	}
	return p, nil
}

// Close closes the pidfd. It does not affect the process.
func (p *Process) Close() error { return p.pidfd.Close() }

// Alive reports whether the process still lives. A zombie does not.
func (p *Process) Alive() bool {
	return p.control(func(fd int) error {
		if pidfdReadable(uintptr(fd)) {
			return ErrGone
		}
		return nil
	}) == nil
}

// control does something with the pidfd.
func (p *Process) control(do func(pidfd int) error) error { return Use(p.pidfd, do) }

// Signal sends a signal. It fails with [ErrGone] if the process has ended.
func (p *Process) Signal(sig unix.Signal) error {
	err := p.control(func(pidfd int) error { return unix.PidfdSendSignal(pidfd, sig, nil, 0) })
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("%v: %w", p, ErrGone)
	}
	if err != nil {
		return fmt.Errorf("send %v to %v: %w", unix.SignalName(sig), p, err)
	}
	return nil
}

// WaitExit waits until the process has ended or ctx is done. Several may wait at once.
func (p *Process) WaitExit(ctx context.Context) error {
	var own int // a deadline would end the waits of all that share a descriptor
	err := p.control(func(pidfd int) (err error) {
		own, err = unix.FcntlInt(uintptr(pidfd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return fmt.Errorf("wait for the end of %v: %w", p, err)
	}
	pidfd := os.NewFile(uintptr(own), "pidfd")
	defer pidfd.Close()
	conn, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = pidfd.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := conn.Read(pidfdReadable); !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return ctx.Err()
}

// pidfdReadable reports whether the process behind a pidfd has ended.
func pidfdReadable(fd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n > 0
		}
	}
}

func startTime(pid int) (uint64, error) {
	stat, err := procStat(pid)
	if err != nil {
		return 0, err
	}
	offset, err := boottimeTicks()
	return stat.Starttime - uint64(offset), err
}

func procStat(pid int) (procfs.ProcStat, error) {
	proc, err := procfs.NewProc(pid)
	if err == nil {
		var stat procfs.ProcStat
		if stat, err = proc.Stat(); err == nil {
			return stat, nil
		}
	}
	return procfs.ProcStat{}, GoneOr(pid, err)
}

// Layout is where the memory of a process begins: at addresses that the kernel chooses anew whenever a program is
// started. criu restores them.
type Layout struct{ Code, Stack uint64 }

// LayoutOf returns the layout of a process.
func LayoutOf(pid int) (Layout, error) {
	stat, err := procStat(pid)
	return Layout{stat.StartCode, stat.StartStack}, err
}

// ThreadStat reads /proc/PID/task/TID/stat and corrects the start time as in [Ident]. It
// fails with [ErrGone] if there is no such thread or it has ended.
func ThreadStat(pid, tid int) (procfs.ProcStat, error) {
	thread, err := procfs.NewProc(pid)
	if err == nil {
		thread, err = thread.Thread(tid)
	}
	var stat procfs.ProcStat
	if err == nil {
		stat, err = thread.Stat()
	}
	if err != nil {
		return stat, GoneOr(pid, err)
	}
	if stat.State == "Z" || stat.State == "X" {
		return stat, fmt.Errorf("thread %d of process %d: %w", tid, pid, ErrGone)
	}
	offset, err := boottimeTicks()
	stat.Starttime -= uint64(offset)
	return stat, err
}

// GoneOr adds the pid to an error from /proc, and turns the errors that /proc gives for an
// ended process into [ErrGone].
func GoneOr(pid int, err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	return fmt.Errorf("process %d: %w", pid, err)
}

// EndStatus tells how the process has ended, which need not be our child. Until its parent has
// waited for it, every kernel tells; later Linux 6.15 and newer do.
func (p *Process) EndStatus() (status unix.WaitStatus, known bool) {
	if data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID)); err == nil {
		if status, known = zombieStatus(string(data)); known {
			return status, true
		}
	}
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	err := p.control(func(pidfd int) error { return unix.IoctlPidfdInfo(pidfd, &info) })
	return unix.WaitStatus(info.Exit_code), err == nil && info.Mask&unix.PIDFD_INFO_EXIT != 0
}

// zombieStatus finds the status in /proc/PID/stat of a process that has ended.
func zombieStatus(stat string) (unix.WaitStatus, bool) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) // from the third on
	const state, exitCode = 0, 52 - 3
	if len(fields) <= exitCode || fields[state] != "Z" {
		return 0, false
	}
	code, err := strconv.Atoi(fields[exitCode])
	return unix.WaitStatus(code), err == nil
}
