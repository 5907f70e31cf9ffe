package criuimage

import (
	"errors"
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
		return nil, nil, &os.PathError{Op: "open", Path: name, Err: errors.New("not a regular file")}
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	opened, err := f.Stat()
	if err == nil && !os.SameFile(info, opened) {
		err = &os.PathError{Op: "open", Path: name, Err: errors.New("replaced while it was being opened")}
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, opened, nil
}
