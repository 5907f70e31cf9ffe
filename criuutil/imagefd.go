package criuutil

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// ShareImageDir returns criu's own descriptor of its image directory. It shares criu's open
// file instead of opening the directory again. dir is a path, or has the form of
// CRTOOLS_IMAGE_DIR. criu opens the directory anew for each request.
func (c *Criu) ShareImageDir(dir string) (*os.File, error) {
	if match := imageDir.FindStringSubmatch(dir); match != nil {
		fd, err := strconv.Atoi(match[2])
		if err != nil {
			return nil, fmt.Errorf("CRTOOLS_IMAGE_DIR: %w", err)
		}
		return c.process.ShareDescriptor(fd)
	}
	wanted, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	open, err := proc.Descriptors(c.PID)
	if err != nil {
		return nil, err
	}
	for fd := range open {
		if info, err := os.Stat(fmt.Sprintf("/proc/%d/fd/%d", c.PID, fd)); err == nil && os.SameFile(info, wanted) {
			return c.process.ShareDescriptor(fd)
		}
	}
	return nil, fmt.Errorf("%v does not have %s open", c, dir)
}

// MarkRequest marks the request that criu is serving with a random number and returns the
// number. If the request has a mark already, it returns that one.
//
// The mark is the file position of criu's open image directory. Nobody reads the directory
// through that open file, so the position stays as it is until criu opens the directory for
// its next request.
func (c *Criu) MarkRequest(dir string) (mark int64, err error) {
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
	rand.Read(random[:])
	mark = 1 + int64(binary.NativeEndian.Uint32(random[:])>>1) // every file system accepts this position
	at, err := unix.Seek(fd, mark, unix.SEEK_SET)
	if err == nil && at != mark {
		err = fmt.Errorf("the file system has moved it to %d", at)
	}
	if err != nil {
		return 0, fmt.Errorf("mark criu's request: %w", err)
	}
	return mark, nil
}
