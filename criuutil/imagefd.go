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

// ShareImageDir returns criu's own descriptor of its image directory. It shares criu's open
// file instead of opening the directory again. dir is a path, or has the form of
// CRTOOLS_IMAGE_DIR. criu opens the directory anew for each request.
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
	if _, err := rand.Read(random[:]); err != nil {
		return 0, err
	}
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
