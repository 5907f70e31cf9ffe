package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// asideInfix is between the name of a file and the time at which what is newer was kept.
const asideInfix = ".cucriu-"

const partialSuffix = "partial" // instead of the time, while the copy is being made

// asidePrefix is how the names of what is kept begin. A name must not become too long.
func asidePrefix(base string) string {
	const longest = 255 - len(asideInfix) - len("20060102-150405-00000")
	return base[:min(len(base), longest)] + asideInfix
}

// keep copies a file's bytes from start to end to a name beside it, and waits until that is
// on disk.
func (t *target) keep(ctx context.Context, now *os.File, start, end int64, base string, step stepper) error {
	spans, err := dataOf(now, end)
	if err != nil {
		return err
	}
	var wanted []span
	for _, s := range spans {
		if s.end > start {
			wanted = append(wanted, span{max(s.start, start), s.end})
		}
	}
	meta := metadataOf(t.stat)
	meta.Size = end - start
	meta.Mode &= 0o777
	err = t.writeBeside(meta, step, func(to *os.File) error { return copySpans(ctx, to, now, wanted, start) })
	if err == nil {
		err = t.rename(asidePrefix(t.base)+partialSuffix, base)
	}
	if err != nil {
		return fmt.Errorf("keep what is newer of %v: %w", t.path, err)
	}
	return t.dir.Sync()
}

// freeName returns a name beside the file for what is kept of it.
func (p *putBack) freeName(t *target) (string, error) {
	for i := 1; ; i++ {
		base := asidePrefix(t.base) + p.Time.UTC().Format("20060102-150405")
		if i > 1 {
			base += "-" + strconv.Itoa(i)
		}
		var st unix.Stat_t
		err := unix.Fstatat(int(t.dir.Fd()), base, &st, unix.AT_SYMLINK_NOFOLLOW)
		if path := filepath.Join(t.dir.Name(), base); errors.Is(err, unix.ENOENT) && !p.taken[path] {
			p.taken[path] = true
			return base, nil
		} else if err != nil && !errors.Is(err, unix.ENOENT) {
			return "", err
		}
	}
}

// writeBeside writes a file under the name for copies that are being made, and waits until
// it is on disk.
func (t *target) writeBeside(meta metadata, step stepper, write func(*os.File) error) error {
	base := asidePrefix(t.base) + partialSuffix
	if err := t.removePartial(); err != nil {
		return err
	}
	fd, err := unix.Openat(int(t.dir.Fd()), base, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), filepath.Join(t.dir.Name(), base))
	defer f.Close()
	if err := step("partial"); err != nil {
		return err
	}
	err = f.Truncate(meta.Size)
	if err == nil {
		err = write(f)
	}
	if err == nil {
		err = f.Chown(int(meta.UID), int(meta.GID))
	}
	if err == nil {
		err = setModeAndTime(f, meta)
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return errors.Join(err, t.removePartial())
	}
	return step("written beside")
}

// removePartial removes what a killed PutBack was about to write.
func (t *target) removePartial() error {
	err := unix.Unlinkat(int(t.dir.Fd()), asidePrefix(t.base)+partialSuffix, 0)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s in %v: %w", asidePrefix(t.base)+partialSuffix, name(t.dir.Name()), err)
	}
	return nil
}

// rename gives a file of the directory a name that no other has.
func (t *target) rename(from, to string) error {
	dir := int(t.dir.Fd())
	err := unix.Renameat2(dir, from, dir, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) { // NFS, for one, does not know this
		if err = unix.Linkat(dir, from, dir, to, 0); err == nil {
			err = unix.Unlinkat(dir, from, 0)
		}
	}
	return err
}

func setModeAndTime(f *os.File, meta metadata) error {
	if err := unix.Fchmod(int(f.Fd()), meta.Mode); err != nil {
		return fmt.Errorf("set the mode of %v: %w", name(f.Name()), err)
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(meta.MTime)}
	err := unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join("/proc/self/fd", strconv.Itoa(int(f.Fd()))), times, 0)
	if err != nil {
		return fmt.Errorf("set the time of %v: %w", name(f.Name()), err)
	}
	return nil
}
