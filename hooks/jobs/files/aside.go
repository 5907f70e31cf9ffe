package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

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
// on disk. If this was done before, it returns the name of that.
func (t *target) keep(ctx context.Context, now *os.File, start, end int64, at time.Time, step stepper) (kept string, err error) {
	kept, err = t.findKept(ctx, now, start, end)
	if err != nil {
		return "", err
	}
	if kept != "" {
		return kept, t.dir.Sync()
	}
	spans, err := dataOf(now, end)
	if err != nil {
		return "", err
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
	if err != nil {
		return "", fmt.Errorf("keep what is newer of %v: %w", t.path, err)
	}
	kept, err = t.renameAside(asidePrefix(t.base)+partialSuffix, at)
	if err != nil {
		return "", fmt.Errorf("keep what is newer of %v: %w", t.path, err)
	}
	return kept, t.dir.Sync()
}

// renameAside gives a file of the directory the name of what is kept, and returns its path.
func (t *target) renameAside(from string, at time.Time) (string, error) {
	for i := 1; ; i++ {
		base := asidePrefix(t.base) + at.UTC().Format("20060102-150405")
		if i > 1 {
			base += "-" + strconv.Itoa(i)
		}
		err := t.rename(from, base)
		if !errors.Is(err, unix.EEXIST) {
			return filepath.Join(t.dir.Name(), base), err
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

// kept lists what was kept of a file before.
func (t *target) kept() ([]string, error) {
	// The directory is read from its start each time.
	dir, err := openDirectory(t.dir.Name())
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var kept []string
	for _, base := range names {
		if suffix, found := strings.CutPrefix(base, asidePrefix(t.base)); found && suffix != partialSuffix {
			kept = append(kept, base)
		}
	}
	return kept, nil
}

// findKept returns the path of a kept file that holds these bytes; "" if there is none.
func (t *target) findKept(ctx context.Context, now *os.File, start, end int64) (string, error) {
	names, err := t.kept()
	if err != nil {
		return "", err
	}
	for _, base := range names {
		f, err := openIn(t.dir, base)
		if err != nil || f == nil {
			continue
		}
		same, err := t.isCopy(ctx, f, now, start, end)
		f.Close()
		if err != nil {
			return "", err
		}
		if same {
			return filepath.Join(t.dir.Name(), base), nil
		}
	}
	return "", nil
}

func (t *target) isCopy(ctx context.Context, kept, now *os.File, start, end int64) (bool, error) {
	st, err := statOf(kept)
	if err != nil || !isRegular(st) || st.Uid != t.stat.Uid || st.Size != end-start {
		return false, err
	}
	readable, err := reopen(kept, unix.O_RDONLY)
	if err != nil {
		return false, err
	}
	defer readable.Close()
	return sameBytes(ctx, readable, st.Size, now, start, end)
}
