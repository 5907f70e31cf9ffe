package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/inside"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/files"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/quote"
	"cucriu/internal/kit/units"
)

// privateDirs lists the directories of which a job needs copies: those of the files that the image was writing or
// had locked, of its named pipes and UNIX sockets, those that were private to the job of the image, and what the
// user names. A directory in another one of them is part of that.
func privateDirs(c store.Checkpoint, jobDir string, o Options) ([]string, error) {
	written, trees, err := writtenIn(c)
	if err != nil {
		return nil, err
	}
	own, err := criuimage.OwnPaths(c.Dir)
	if err != nil {
		return nil, err
	}
	sockets, err := criuimage.BoundSockets(c.Dir)
	if err != nil {
		return nil, err
	}
	trees = append(trees, "/dev", "/proc", "/sys", aboutDir) // of which a sandbox has its own, or which are the kernel's
	of, err := inside.ReadStaged(c.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	dirs := slices.Clone(of.Private)
	for _, given := range o.Private {
		dir, err := filepath.Abs(given)
		isGone := func(socket string) bool { return filepath.Dir(socket) == dir } // or may be
		if err == nil && !slices.ContainsFunc(sockets, isGone) {
			dir, err = filepath.EvalSymlinks(dir)
		}
		if err != nil {
			return nil, fmt.Errorf("--private: %w", err)
		}
		dirs = append(dirs, dir)
	}
	named := slices.Clone(dirs)
	for _, path := range append(written, own...) {
		dirs = append(dirs, filepath.Dir(path))
	}
	isIn := func(dir string, of ...string) bool {
		return slices.ContainsFunc(of, func(of string) bool { return of != "" && isBelow(dir, of) })
	}
	isOwn := func(dir string) bool { return isIn(resolve(dir), jobDir) || isIn(dir, trees...) }
	begun := of.JobBegun
	if _, owner := ownerOf(c.Dir); begun.IsZero() {
		begun = owner.Begun
	}
	for _, path := range sockets {
		if dir := filepath.Dir(path); !isOwn(dir) && !isIn(dir, named...) {
			dirs = append(dirs, lasting(dir, begun))
		}
	}
	slices.Sort(dirs)
	var all []string
	for _, dir := range dirs {
		if isOwn(dir) || isIn(dir, all...) {
			continue
		}
		for _, other := range []string{o.Dir, jobDir} {
			if other != "" && isBelow(resolve(other), dir) {
				return nil, fault.New(fmt.Sprintf("each job from the image gets a copy of %s, and %s is in it", dir, other),
					orOnlyParts(c, dir, "let the job write in a directory of its own; name a --dir elsewhere"))
			}
		}
		all = append(all, dir)
	}
	return all, nil
}

// lasting returns the directory of which a job gets a copy for sockets in dir: that above what the job of the image has
// made since it began, or what is gone. A program removes its temporary directories, and what is mounted on a directory
// that somebody removes is unmounted everywhere.
func lasting(dir string, begun time.Time) string {
	highest := dir
	for above := dir; above != "/"; above = filepath.Dir(above) {
		var stat unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, above, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME|unix.STATX_MODE, &stat)
		if err != nil {
			continue
		}
		if highest = above; lasts(above, stat, begun) {
			break
		}
	}
	return highest
}

// lasts reports whether nobody is likely to remove a directory: somebody has mounted a file system there, or everybody
// may make files in it, or it is older than the job. If that is not known, it is one that is in no such directory.
func lasts(dir string, stat unix.Statx_t, begun time.Time) bool {
	const everybodys = unix.S_ISVTX | unix.S_IWOTH
	switch {
	case stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, stat.Mode&everybodys == everybodys:
		return true
	case stat.Mask&unix.STATX_BTIME != 0 && !begun.IsZero():
		return !time.Unix(stat.Btime.Sec, int64(stat.Btime.Nsec)).After(begun)
	}
	var parent unix.Stat_t
	return unix.Stat(filepath.Dir(dir), &parent) == nil && parent.Mode&everybodys != everybodys
}

// orOnlyParts adds to what can be done about a directory that a job needs a copy of only for sockets in others
// below it.
func orOnlyParts(c store.Checkpoint, dir, remedy string) string {
	if parts := onlyParts(c, dir); parts != "" {
		return remedy + "; or name " + parts + ", if nobody removes that while the job runs"
	}
	return remedy
}

// onlyParts returns the options with which a job does without a copy of a directory; "" if it cannot.
func onlyParts(c store.Checkpoint, dir string) string {
	written, _, writtenErr := writtenIn(c)
	own, ownErr := criuimage.OwnPaths(c.Dir)
	sockets, err := criuimage.BoundSockets(c.Dir)
	if errors.Join(writtenErr, ownErr, err) != nil {
		return ""
	}
	var options []string
	for _, path := range append(written, own...) {
		part := filepath.Dir(path)
		if part == dir {
			return ""
		}
		option := "--private " + quote.Name(part)
		if isBelow(part, dir) && slices.Contains(sockets, path) && !slices.Contains(options, option) {
			options = append(options, option)
		}
	}
	return strings.Join(options, " ")
}

// writtenIn lists the files that the job of an image was writing, and the directories of its own that the image has.
func writtenIn(c store.Checkpoint) (written, trees []string, err error) {
	if !c.IsDump() {
		return files.Written(c.Dir)
	}
	all, err := criuimage.Files(c.Dir)
	for _, f := range all {
		if f.Written {
			written = append(written, f.Path)
		}
	}
	return written, nil, err
}

func asItIs(path string) string { return path }

// checkUnchanged fails if an image does not hold the files that its job was writing, and these have changed since. at
// says where a file is.
func checkUnchanged(c store.Checkpoint, at func(path string) string) error {
	if !c.IsDump() {
		return nil
	}
	all, err := criuimage.Files(c.Dir)
	if err != nil {
		return err
	}
	mapped, err := criuimage.SharedMappings(c.Dir)
	if err != nil {
		return err
	}
	var changed []string
	for _, f := range all {
		info, err := os.Lstat(at(f.Path))
		isSame := err == nil && info.Size() == f.Size && !info.ModTime().After(c.CreatedAt)
		if path := at(f.Path); isSame && path == f.Path { // not a copy of ours: whoever sets the time back changes this one
			changed := info.Sys().(*syscall.Stat_t).Ctim
			isSame = !time.Unix(changed.Unix()).After(c.CreatedAt)
		}
		// A store to a mapping need not change any time.
		if isBelow(f.Path, shm) || mapped[f.Path] || f.Written && !isSame {
			changed = append(changed, f.Path)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	return fault.New("image-incomplete: it does not hold the files that its job was writing, and of these it is not shown "+
		"that they are unchanged: "+quote.Names(changed), "run the job with cucriu run --dir: its checkpoints hold these files")
}

// layOut makes what the job has of its own: directories to mount on, our files, and private copies. It reports whether the
// copies are fresh: an earlier start of the job may have written to others.
func (s *starter) layOut(ctx context.Context, c store.Checkpoint) (fresh bool, err error) {
	from, private := s.record.Image, filepath.Join(s.Dir, privateDir)
	ownerDir, owner := ownerOf(from.Path)
	owner.Dir = ownerDir
	if err := os.MkdirAll(filepath.Join(s.Dir, shownImage), 0o700); err != nil {
		return false, err
	}
	for name, of := range ours {
		data, err := os.ReadFile(filepath.Join(c.Dir, oursPrefix+name))
		if errors.Is(err, fs.ErrNotExist) && ownerDir != "" { // an earlier version has made the image
			data, err = os.ReadFile(filepath.Join(ownerDir, name))
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = durable.WriteNew(filepath.Join(s.Dir, name), data, of.mode)
		}
		if err != nil {
			return false, err
		}
	}
	if _, err := os.Lstat(private); err == nil {
		return false, nil
	}
	partial := private + ".partial"
	if err := errors.Join(os.RemoveAll(partial), os.Mkdir(partial, 0o700)); err != nil {
		return false, err
	}
	for n, dir := range from.Private {
		to := filepath.Join(partial, strconv.Itoa(n))
		err := s.copyPrivate(ctx, c, owner.hostPath(dir), dir, to)
		if explained := new(fault.Explained); errors.As(err, &explained) {
			err = fault.Because(err, explained.Meaning(), orOnlyParts(c, dir, explained.Remedy()))
		}
		if err == nil {
			err = s.makeGoneIn(ctx, c, dir, to)
		}
		if err != nil {
			return false, fmt.Errorf("private copy of %s: %w", dir, err)
		}
	}
	err = syncAll(partial) // later starts take what is there
	if err == nil {
		err = failpoint.Hit(ctx, "image.copied", 0)
	}
	if err != nil {
		return false, err
	}
	return true, os.Rename(partial, private)
}

// syncAll waits until the file system of a directory is on disk.
func syncAll(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(f.Fd())))
}

// copyTries is how often a directory is copied that is written to meanwhile: a database would be of no one state.
const copyTries = 3

// copyPrivate copies a directory, with all that is in its file system. The job knows it as seen.
func (s *starter) copyPrivate(ctx context.Context, c store.Checkpoint, dir, seen, to string) error {
	from, err := openWithoutLinks(dir)
	if errors.Is(err, fs.ErrNotExist) && dir == seen {
		return s.makeGone(ctx, c, seen, to)
	}
	if err != nil {
		return err
	}
	defer from.Close()
	mounts, err := inventory.OwnMounts()
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if m.At != dir && isBelow(m.At, dir) {
			return fault.New(m.At+" is mounted in it, and would be missing", "let the job write in a directory of its own")
		}
	}
	before, err := s.survey(ctx, c, from, seen)
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		if err := os.RemoveAll(to); err != nil {
			return err
		}
		err := copyTree(ctx, from, to)
		if errors.Is(err, errReplaced) && try < copyTries {
			continue
		}
		if err == nil {
			err = failpoint.Hit(ctx, "image.copying", 0)
		}
		var after survey
		if err == nil {
			after, err = s.survey(ctx, c, from, seen)
		}
		if err != nil {
			return err
		}
		changed := after.changedSince(before)
		if before = after; changed == "" {
			return nil
		}
		if try == copyTries {
			s.say(fmt.Sprintf("warning: %s was written to while it was copied: what this job has of it may be of no one moment",
				filepath.Join(seen, changed)))
			return nil
		}
	}
}

// makeGoneIn makes in a copy those directories of sockets that the host does not have any more. What another user may
// have put in the place of one is not followed.
func (s *starter) makeGoneIn(ctx context.Context, c store.Checkpoint, seen, to string) error {
	sockets, err := criuimage.BoundSockets(c.Dir)
	if err != nil {
		return err
	}
	for _, path := range sockets {
		rest, err := filepath.Rel(seen, filepath.Dir(path))
		if err != nil || !filepath.IsLocal(rest) {
			continue
		}
		at := ""
		for _, name := range strings.Split(rest, "/") {
			at = filepath.Join(at, name)
			info, err := os.Lstat(filepath.Join(to, at))
			if errors.Is(err, fs.ErrNotExist) {
				err = s.makeGone(ctx, c, filepath.Join(seen, at), filepath.Join(to, at))
			} else if err == nil && !info.IsDir() {
				err = fault.New(filepath.Join(seen, at)+" is no directory any more, and the job has sockets there",
					"remove what has this name now")
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// makeGone makes a directory that the host does not have any more, as that of a program that has removed it at its
// end, if the job needs only sockets there, which criu makes. Files would be missing: their disk may not be mounted.
// Who else could enter the directory is not known.
func (s *starter) makeGone(ctx context.Context, c store.Checkpoint, seen, to string) error {
	written, _, err := writtenIn(c)
	if err != nil {
		return err
	}
	own, err := criuimage.OwnPaths(c.Dir)
	if err != nil {
		return err
	}
	sockets, err := criuimage.BoundSockets(c.Dir)
	if err != nil {
		return err
	}
	for _, path := range append(written, own...) {
		if isBelow(path, seen) && !slices.Contains(sockets, path) {
			return &fs.PathError{Op: "open", Path: seen, Err: unix.ENOENT}
		}
	}
	as, err := rootUser(c)
	if err != nil {
		return err
	}
	s.say(seen + " is gone on this host: the job has there its sockets, and nothing else")
	if err = os.Mkdir(to, 0o700); err == nil {
		err = failpoint.Hit(ctx, "image.gone", 0)
	}
	return cmp.Or(err, os.Chown(to, int(as.Uid), int(as.Gid)))
}

// sayOutOfReach names the sockets of programs of this host which the job cannot reach, for it has a copy of their
// directory.
func (s *starter) sayOutOfReach(c store.Checkpoint) {
	const listens = 1 << 16 // __SO_ACCEPTCON
	sockets, err := criuimage.BoundSockets(c.Dir)
	if err != nil {
		return
	}
	host, err := procfs.NewFS("/proc")
	if err != nil {
		return
	}
	all, err := host.NetUNIX() // those of other networks are not known
	if err != nil {
		return
	}
	var paths []string
	for _, row := range all.Rows {
		isCopied := filepath.IsAbs(row.Path) && s.record.hostPath(row.Path) != row.Path
		if isCopied && row.Flags&listens != 0 && !slices.Contains(sockets, row.Path) && !slices.Contains(paths, row.Path) {
			paths = append(paths, row.Path)
		}
	}
	if len(paths) == 0 {
		return
	}
	text := "warning: programs of this host listen at " + quote.Names(paths) +
		", which the job cannot reach: it has a copy of the directory"
	for _, dir := range s.record.Image.Private {
		if parts := onlyParts(c, dir); parts != "" && isBelow(paths[0], dir) {
			text += "; to have copies of less, start another job with " + parts
		}
	}
	s.say(text)
}

// openWithoutLinks opens a directory so that no symbolic link leads elsewhere, whoever puts it there and when.
func openWithoutLinks(path string) (*os.File, error) {
	dir, err := durable.OpenDir(path)
	if err != nil {
		return nil, err
	}
	fd, err := unix.OpenTree(int(dir.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if errors.Is(err, unix.ENOSYS) {
		return dir, nil // before Linux 5.2, where only the directory itself is safe
	}
	if err == nil {
		defer dir.Close()
		dir = os.NewFile(uintptr(fd), path)
		attributes := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSYMFOLLOW}
		err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attributes)
	}
	if err != nil && !errors.Is(err, unix.ENOSYS) {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), dir.Close())
	}
	return dir, nil
}

// survey is what files of a directory are, by their paths in it: those that the checkpoint does not put back.
type survey map[string]syscall.Stat_t

// changedSince returns the path of a file in which somebody has written. One that has replaced another is whole.
func (now survey) changedSince(then survey) string {
	for path, file := range now {
		if was, known := then[path]; known && was.Ino == file.Ino && (was.Mtim != file.Mtim || was.Size != file.Size) {
			return path
		}
	}
	return ""
}

// survey looks whether a directory can be copied for the job.
func (s *starter) survey(ctx context.Context, c store.Checkpoint, from *os.File, seen string) (survey, error) {
	written, _, err := writtenIn(c)
	if err != nil {
		return nil, err
	}
	isWritten := make(map[string]bool)
	for _, path := range written {
		isWritten[path] = true
	}
	limit, top := cmp.Or(s.FilesLimit, files.DefaultLimit), proc.PathIn(from, "")
	var sum int64
	found, names := make(survey), make(map[uint64]uint64) // by inode
	links := make(map[string]syscall.Stat_t)
	err = filepath.WalkDir(top+".", func(path string, entry fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = entry.Info()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		stat, name := info.Sys().(*syscall.Stat_t), strings.TrimPrefix(path, top)
		if sum += stat.Blocks * 512; sum > limit {
			return fault.New("it holds more than "+units.Size(limit),
				"let the job write in a directory of its own, or give a larger --files-limit")
		}
		names[stat.Ino]++
		isOwn := isWritten[filepath.Join(seen, name)]
		if isOwn && stat.Nlink > 1 {
			links[name] = *stat
		}
		if info.Mode().IsRegular() && (!isOwn || c.IsDump()) { // a checkpoint puts its own back
			found[name] = *stat
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, err
	}
	for name, stat := range links {
		if names[stat.Ino] < uint64(stat.Nlink) {
			return nil, fault.New(filepath.Join(seen, name)+" has a name elsewhere, which would lead to another file",
				"remove that name, or let the job write to a file that has no other")
		}
	}
	return found, nil
}

var errReplaced = errors.New("a file was replaced while it was copied")

// copyTree copies a directory, without what is removed meanwhile. [errReplaced] says that it must be tried again.
func copyTree(ctx context.Context, from *os.File, to string) error {
	runtime.LockOSThread() // as the end of a thread is for its children what that of the program is
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, "cp", "--archive", "--one-file-system", "--reflink=auto",
		"--no-target-directory", "--", "/proc/self/fd/3/.", to)
	cmd.ExtraFiles = []*os.File{from}
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL} // it must not write to what the next start copies
	said, err := cmd.CombinedOutput()
	if err == nil || ctx.Err() != nil {
		return context.Cause(ctx)
	}
	lines, gone, replaced := strings.Split(strings.TrimSpace(string(said)), "\n"), 0, 0
	for _, line := range lines {
		switch {
		case strings.HasSuffix(line, ": No such file or directory"):
			gone++
		case strings.HasSuffix(line, " replaced while being copied"):
			replaced++
		}
	}
	switch {
	case gone+replaced < len(lines):
		return fmt.Errorf("cp: %w: %s", err, strings.Join(lines, "; "))
	case replaced > 0:
		return errReplaced
	}
	return nil
}
