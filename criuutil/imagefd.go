package criuutil

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// ShareImageDir returns criu's own descriptor of its image directory, shared: not
// the same directory opened again, but the open file that criu has. It is named as
// in CRTOOLS_IMAGE_DIR, or by its path. criu opens it anew for each request.
func (c *Criu) ShareImageDir(dir string) (*os.File, error) {
	if match := imageDir.FindStringSubmatch(dir); match != nil {
		fd, err := strconv.Atoi(match[2])
		if err != nil {
			return nil, fmt.Errorf("CRTOOLS_IMAGE_DIR: %w", err)
		}
		return c.ShareDescriptor(fd)
	}
	wanted, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	open := filepath.Join("/proc", strconv.Itoa(c.PID), "fd")
	entries, err := os.ReadDir(open)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		info, err := os.Stat(filepath.Join(open, entry.Name()))
		fd, nameErr := strconv.Atoi(entry.Name())
		if err == nil && nameErr == nil && os.SameFile(info, wanted) {
			return c.ShareDescriptor(fd)
		}
	}
	return nil, fmt.Errorf("%v does not have %s open", c, dir)
}

// ShareDescriptor returns one of the process's descriptors, shared.
func (p *Process) ShareDescriptor(fd int) (*os.File, error) {
	conn, err := p.pidfd.SyscallConn()
	if err != nil {
		return nil, err
	}
	shared, shareErr := -1, error(nil)
	if err := conn.Control(func(pidfd uintptr) { shared, shareErr = unix.PidfdGetfd(int(pidfd), fd, 0) }); err != nil {
		return nil, err
	}
	if shareErr != nil {
		return nil, fmt.Errorf("share descriptor %d of %v: %w", fd, p, shareErr)
	}
	// The kernel sets close-on-exec.
	return os.NewFile(uintptr(shared), fmt.Sprintf("descriptor %d of %v", fd, p)), nil
}

// The mark is the position of the open file. criu reads no directory through this
// one, so the position stays what it is; whoever inherits the open file has it, too,
// and anybody can read it in /proc.

// MarkImageDir marks what criu has open of its image directory with a random number,
// unless it has been marked before. So a request is told from the next one, and what
// criu has created for it from everything else.
func (c *Criu) MarkImageDir(dir string) (mark int64, err error) {
	shared, err := c.ShareImageDir(dir)
	if err != nil {
		return 0, err
	}
	defer shared.Close()
	fd := int(shared.Fd())
	if mark, err := unix.Seek(fd, 0, unix.SEEK_CUR); err != nil || mark != 0 {
		return mark, err
	}
	var random [4]byte
	if _, err := rand.Read(random[:]); err != nil {
		return 0, err
	}
	mark = 1 + int64(binary.NativeEndian.Uint32(random[:])>>1) // which every file system takes
	at, err := unix.Seek(fd, mark, unix.SEEK_SET)
	if err == nil && at != mark {
		err = fmt.Errorf("the file system has moved it to %d", at)
	}
	if err != nil {
		return 0, fmt.Errorf("mark criu's image directory: %w", err)
	}
	return mark, nil
}

// HasMarked reports whether a process has a directory open with the mark: it has
// inherited it from the criu that was marked.
func HasMarked(pid int, isDir func(os.FileInfo) bool, mark int64) bool {
	if mark == 0 {
		return false
	}
	open := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(open)
	if err != nil {
		return false
	}
	for _, entry := range entries {
		info, err := os.Stat(filepath.Join(open, entry.Name()))
		if err != nil || !isDir(info) {
			continue
		}
		data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "fdinfo", entry.Name()))
		var at int64
		if _, scanErr := fmt.Sscanf(string(data), "pos: %d", &at); err == nil && scanErr == nil && at == mark {
			return true
		}
	}
	return false
}
