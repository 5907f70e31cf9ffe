package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/records"
)

// Terminal is a terminal of the job's own, which earlier versions gave it (--tty): a pseudo terminal whose other end
// init has. For criu it is outside of the job, so a restore gives it another one.
type Terminal struct {
	Path string `json:"path"`
	Name string `json:"name"` // criu's
}

var terminalKind = records.Kind[Terminal]{Name: "terminal.json", Version: 1} // in the folder of a sandbox

// ReadTerminal tells which terminal the job in a sandbox has; nil if it has none. dir is the
// sandbox's folder.
func ReadTerminal(dir string) (*Terminal, error) {
	t, err := terminalKind.Read(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("terminal of the job: %w", err)
	}
	return &t, nil
}

// console is init's end of the job's terminal.
type console struct {
	master int
	slave  *os.File // kept open, so that there is a terminal before the job has it
	mutex  sync.Mutex
	output *os.File
}

// newConsole makes a terminal. What the job writes there is appended to a file.
func newConsole(dir string, spec TerminalSpec) (c *console, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("terminal of the job: %w", err)
		}
	}()
	c = new(console)
	if c.output, err = os.OpenFile(spec.Output, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	if c.master, err = unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err != nil {
		return nil, err
	}
	if err := unix.IoctlSetPointerInt(c.master, unix.TIOCSPTLCK, 0); err != nil {
		return nil, err
	}
	number, err := unix.IoctlGetUint32(c.master, unix.TIOCGPTN)
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlSetWinsize(c.master, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		return nil, err
	}
	path := "/dev/pts/" + strconv.Itoa(int(number))
	if c.slave, err = os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, err
	}
	if spec.User != nil {
		if err := c.slave.Chown(int(spec.User.Uid), -1); err != nil {
			return nil, err
		}
	}
	var info unix.Stat_t
	if err := unix.Fstat(int(c.slave.Fd()), &info); err != nil {
		return nil, err
	}
	t := Terminal{Path: path, Name: fmt.Sprintf("tty[%x:%x]", info.Rdev, info.Dev)}
	return c, terminalKind.Write(dir, t)
}

// run appends to the file what the job writes.
func (c *console) run() {
	for {
		there := []unix.PollFd{{Fd: int32(c.master), Events: unix.POLLIN}}
		if _, err := unix.Poll(there, -1); err == nil {
			c.drain()
		}
	}
}

// drain appends to the file what the job has written.
func (c *console) drain() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	buffer := make([]byte, 1<<16)
	for {
		there := []unix.PollFd{{Fd: int32(c.master), Events: unix.POLLIN}}
		if n, err := unix.Poll(there, 0); err != nil || n == 0 {
			return
		}
		n, err := unix.Read(c.master, buffer)
		if err != nil || n == 0 {
			return
		}
		_, _ = c.output.Write(buffer[:n]) // a full disk does not stop a job
	}
}
