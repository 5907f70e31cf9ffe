package criuimage

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// OpenIn opens a regular file of an image for reading. It follows no links.
func OpenIn(root *os.Root, name string) (*os.File, os.FileInfo, error) {
	// Before it is opened: to open a device can have effects, and os.Root follows links that
	// lead to somewhere in it.
	info, err := root.Lstat(name)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s is not a regular file", name)
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	opened, err := f.Stat()
	if err == nil && !os.SameFile(info, opened) {
		err = fmt.Errorf("%s was replaced while it was being opened", name)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, opened, nil
}
