package files

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// target is a place where a file is to be put back.
type target struct {
	path name
	dir  *os.File // its directory
	base string
	now  *os.File // what is there, opened to look at only; nil if nothing is
	stat unix.Stat_t
}

// openTarget looks at what is at a path of a file. It refuses what must not be written to.
func openTarget(f file, path name) (*target, error) {
	folder, base := path.split()
	dir, err := openDirectory(folder)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", path, err)
	}
	t := &target{path: path, dir: dir, base: base}
	if t.now, err = openIn(dir, base); err == nil && t.now != nil {
		if t.stat, err = statOf(t.now); err == nil {
			err = f.checkSame(t.stat)
		}
	}
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("%v: %w", path, err)
	}
	return t, nil
}

func (t *target) Close() error {
	var err error
	if t.now != nil {
		err = t.now.Close()
	}
	return errors.Join(err, t.dir.Close())
}

// checkSame refuses a file that somebody with fewer rights than root may have put in the
// place of the job's: something else than a file, another user's file, or another name of a
// file that is elsewhere too.
func (f file) checkSame(now unix.Stat_t) error {
	switch {
	case !isRegular(now):
		return fmt.Errorf("it is %s now, and was a regular file at the checkpoint", what(now))
	case now.Uid != f.Meta.UID:
		return fmt.Errorf("it belongs to user %d now, and belonged to user %d at the checkpoint", now.Uid, f.Meta.UID)
	case uint64(now.Nlink) > f.Links && inodeOf(now) != (inode{f.Dev, f.Inode}):
		return fmt.Errorf("it is another file than at the checkpoint, and has %d names, not %d", now.Nlink, f.Links)
	}
	return nil
}

// checkRead refuses a file that the tree only reads, if it is not what criu insists on. A
// symbolic link on the way is no harm: criu follows it.
func (f file) checkRead() error {
	for _, path := range f.Paths {
		var now unix.Stat_t
		err := unix.Stat(string(path), &now)
		subject := "which the job has open for reading,"
		if f.Use == useMapped {
			subject = "a program or a library of the job,"
		}
		switch {
		case errors.Is(err, unix.ENOENT):
			return fmt.Errorf("%v, %s is missing", path, subject)
		case err != nil:
			return fmt.Errorf("%v, %s: %w", path, subject, err)
		case !isRegular(now):
			return fmt.Errorf("%v, %s is %s now", path, subject, what(now))
		case now.Size != f.Meta.Size:
			return fmt.Errorf("%v, %s had %d bytes at the checkpoint, and has %d now", path, subject, f.Meta.Size, now.Size)
		case now.Mode&0o7777 != f.Meta.Mode:
			return fmt.Errorf("%v, %s had the mode %04o at the checkpoint, and has %04o now", path, subject, f.Meta.Mode, now.Mode&0o7777)
		}
	}
	return nil
}
