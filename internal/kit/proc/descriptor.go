package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ShareDescriptor returns a duplicate of one of the process's descriptors. It refers to the
// same open file.
func (p *Process) ShareDescriptor(fd int) (*os.File, error) {
	shared, err := p.DuplicateDescriptor(fd)
	if err != nil {
		return nil, fmt.Errorf("share descriptor %d of %v: %w", fd, p, err)
	}
	return os.NewFile(uintptr(shared), fmt.Sprintf("descriptor %d of %v", fd, p)), nil
}

// ShareSocket is ShareDescriptor for a unix socket. It refuses everything else: to close that might wait for a server.
func (p *Process) ShareSocket(fd int) (*os.File, error) {
	socket, err := p.ShareDescriptor(fd)
	if err != nil {
		return nil, err
	}
	domain := 0
	err = Use(socket, func(fd int) (err error) {
		domain, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		return err
	})
	if err == nil && domain == unix.AF_UNIX {
		return socket, nil
	}
	go socket.Close()
	return nil, errors.Join(fmt.Errorf("descriptor %d of %v is no unix socket", fd, p), err)
}

// DuplicateDescriptor is ShareDescriptor without the Go runtime, which changes the mode of what it is
// given. The kernel sets close-on-exec.
func (p *Process) DuplicateDescriptor(fd int) (shared int, err error) {
	err = p.control(func(pidfd int) (err error) {
		shared, err = unix.PidfdGetfd(pidfd, fd, 0)
		return err
	})
	return shared, err
}

// Use does something with the descriptor of a file or a connection. It does not change its mode, which other
// processes may share.
func Use(f syscall.Conn, do func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var doErr error
	if err := conn.Control(func(fd uintptr) { doErr = do(int(fd)) }); err != nil {
		return err
	}
	return doErr
}

// Descriptors returns what each open descriptor of a process refers to, such as "socket:[4711]".
func Descriptors(pid int) (map[int]string, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, GoneOr(pid, err)
	}
	open := make(map[int]string)
	for _, entry := range entries {
		fd, err := strconv.Atoi(entry.Name())
		link, linkErr := os.Readlink(filepath.Join(dir, entry.Name()))
		if err == nil && linkErr == nil { // else it was closed meanwhile
			open[fd] = link
		}
	}
	return open, nil
}

// DescriptorInfo is what /proc/PID/fdinfo tells of a descriptor.
type DescriptorInfo struct {
	Flags int // O_RDWR, O_APPEND and so on
	text  string
}

// ReadDescriptor reads what /proc tells of a descriptor.
func ReadDescriptor(pid int, fd string) (info DescriptorInfo, err error) {
	text, err := ReadText(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, fd))
	if err != nil {
		return info, GoneOr(pid, err)
	}
	info, err = parseDescriptor(string(text))
	if err != nil {
		err = fmt.Errorf("fdinfo of descriptor %s of process %d: %w", fd, pid, err)
	}
	return info, err
}

func parseDescriptor(text string) (DescriptorInfo, error) {
	info := DescriptorInfo{text: text}
	flags, err := strconv.ParseInt(info.Field("flags"), 8, 64)
	if err != nil {
		return info, fmt.Errorf("it has no flags: %q", text[:min(len(text), 200)])
	}
	info.Flags = int(flags)
	return info, nil
}

// Access tells how the descriptor was opened. It does neither if it was opened with O_PATH, or is closed.
func (i DescriptorInfo) Access() (reads, writes bool) {
	mode := i.Flags & unix.O_ACCMODE
	if i.text == "" || i.Flags&unix.O_PATH != 0 || mode == unix.O_ACCMODE {
		return false, false
	}
	return mode != unix.O_WRONLY, mode != unix.O_RDONLY
}

// Field returns the first line of a name; empty if there is none.
func (i DescriptorInfo) Field(name string) string {
	for _, value := range i.Fields(name) {
		return value
	}
	return ""
}

// Fields returns all lines of a name.
func (i DescriptorInfo) Fields(name string) (values []string) {
	for line := range strings.Lines(i.text) {
		if value, is := strings.CutPrefix(line, name+":"); is {
			values = append(values, strings.TrimSpace(value))
		}
	}
	return values
}

// IsNull reports whether a path leads to the kernel's /dev/null.
func IsNull(path string) (bool, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3), nil
}

// RearmTimers restarts the periodic timers (timerfd_create(2)) that criu has restored
// disarmed. An expired periodic timer starts again only when somebody reads it. Until then
// it has no time left, and criu takes it for disarmed. If a process was stopped for longer
// than a timer's period, that timer has expired.
//
// The timers expire at once, as they had before the dump. The process must not run.
func (p *Process) RearmTimers() error {
	open, err := Descriptors(p.PID)
	for fd, link := range open {
		if link != "anon_inode:[timerfd]" {
			continue
		}
		if err := p.rearmTimer(fd); err != nil && !errors.Is(err, ErrGone) { // else it was closed meanwhile
			return fmt.Errorf("timer on descriptor %d of process %d: %w", fd, p.PID, err)
		}
	}
	return err
}

func (p *Process) rearmTimer(fd int) error {
	info, err := ReadDescriptor(p.PID, strconv.Itoa(fd))
	if err != nil {
		return err
	}
	_, text, _ := strings.Cut(info.text, "clockid:")
	var clock int32
	var ticks uint64
	var flags int
	var timer unix.ItimerSpec
	if _, err := fmt.Sscanf(text, "%d\nticks: %d\nsettime flags: %o\nit_value: (%d, %d)\nit_interval: (%d, %d)",
		&clock, &ticks, &flags, &timer.Value.Sec, &timer.Value.Nsec, &timer.Interval.Sec, &timer.Interval.Nsec); err != nil {
		return fmt.Errorf("its fdinfo could not be parsed: %w: %q", err, info.text)
	}
	if ticks == 0 || timer.Value != (unix.Timespec{}) || timer.Interval == (unix.Timespec{}) {
		return nil // disarmed by the program, a one-shot timer, or still running
	}
	timer.Value.Nsec = 1
	if flags&unix.TFD_TIMER_ABSTIME != 0 {
		if err := unix.ClockGettime(clock, &timer.Value); err != nil {
			return err
		}
	}
	own, err := p.DuplicateDescriptor(fd)
	if err != nil {
		return err
	}
	defer unix.Close(own)
	return unix.TimerfdSettime(own, flags, &timer, nil)
}

// PathIn names what is in a directory by the directory's descriptor. That is short: the path of a socket has
// room for 107 bytes only.
func PathIn(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}
