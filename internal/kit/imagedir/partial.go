package imagedir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/proc"
)

// Partial is the directory that criu writes into until the image is complete. An image directory is
// complete or absent: the partial one is beside it, and gets its name once everything in it is on disk.
//
// The directory above may belong to somebody else, who can put a symbolic link in place of anything in
// it at any time. So the partial directory is only used by its descriptor, see [Partial.Dir].
type Partial struct {
	Claim  *os.File // claims the directory as long as it is open, see isClaimed
	dir    string   // the final name
	name   string   // in parent
	parent *os.File
	self   *os.File
}

const partialInfix = ".partial-" // between the directory's name and the pid of the process that writes it

// NewPartial makes the partial directory for the image directory dir. dir must not exist yet, or be
// empty: a dump never overwrites another. NewPartial removes what a killed dump under the same name left
// behind, except the directories that needed returns true for, and refuses one that is at work.
func NewPartial(dir string, needed func(partial string) bool) (_ *Partial, err error) {
	if err := CheckVacant(dir); err != nil {
		return nil, err
	}
	if err := removeStalePartials(dir, needed); err != nil {
		return nil, err
	}
	p := &Partial{dir: dir, name: filepath.Base(dir) + partialInfix + strconv.Itoa(os.Getpid())}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if p.parent, err = os.OpenFile(filepath.Dir(dir), unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		return nil, fmt.Errorf("image directory: %w", err)
	}
	if err := unix.Mkdirat(int(p.parent.Fd()), p.name, 0o700); errors.Is(err, unix.ENAMETOOLONG) {
		return nil, p.nameTooLong()
	} else if err != nil {
		return nil, fault.New(fmt.Sprintf("no directory can be made in %s: %v", filepath.Dir(dir), err), "name an image directory elsewhere")
	}
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(int(p.parent.Fd()), p.name, unix.AT_REMOVEDIR)
		}
	}()
	if p.self, err = openDir(int(p.parent.Fd()), p.name, p.Path()); err != nil {
		return nil, err
	}
	if err := p.requireOurs(); err != nil {
		return nil, err
	}
	if p.Claim, err = openDir(int(p.self.Fd()), ".", p.Path()); err != nil {
		return nil, err
	}
	_ = unix.Flock(int(p.Claim.Fd()), unix.LOCK_EX) // not every file system has locks
	return p, nil
}

// nameTooLong says how long the name may be here, so that the partial directory's fits, whatever the pid.
func (p *Partial) nameTooLong() error {
	var system unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(p.dir), &system); err != nil {
		return fmt.Errorf("image directory: %w", err)
	}
	const longestPID = len("4194304")
	return fault.New(fmt.Sprintf("the name of image directory %s has %d bytes, and may have %d, because %sPID is appended while it is written",
		p.dir, len(filepath.Base(p.dir)), int(system.Namelen)-len(partialInfix)-longestPID, partialInfix), "choose a shorter name")
}

// openDir opens a directory, and nothing that a link leads to.
func openDir(at int, name, path string) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("image directory: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	return os.NewFile(uintptr(fd), path), nil
}

// requireOurs fails if somebody has put another directory in place of the one that was made: it is
// empty, belongs to whom new files belong to, and lets in nobody else. Who that is, and whether there
// are permissions at all, depends on the file system (NFS with root_squash, FUSE), so a new file tells.
func (p *Partial) requireOurs() error {
	_ = p.self.Chmod(0o700) // where there are no permissions, it fails
	entries, err := os.ReadDir(p.Dir())
	probe := filepath.Join(p.Dir(), "owner")
	if err == nil && len(entries) == 0 {
		var f *os.File
		if f, err = os.OpenFile(probe, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err == nil {
			var dir, file unix.Stat_t
			err = errors.Join(unix.Fstat(int(p.self.Fd()), &dir), unix.Fstat(int(f.Fd()), &file), f.Close(), os.Remove(probe))
			if err == nil && dir.Uid == file.Uid {
				return nil
			}
		}
	}
	if err != nil {
		return fmt.Errorf("image directory %s: %w", p.Path(), err)
	}
	return p.replaced()
}

func (p *Partial) replaced() error {
	return fault.New(fmt.Sprintf("image directory %s was replaced by another program during the dump", p.dir),
		"name a directory in one that only root can change")
}

// Path names the directory until [Partial.Publish], for people.
func (p *Partial) Path() string { return filepath.Join(filepath.Dir(p.dir), p.name) }

// Dir is the directory's path for this process alone, by its descriptor: whatever is put in place of
// its name, and after it got the final one, too.
func (p *Partial) Dir() string { return fmt.Sprintf("/proc/self/fd/%d", p.self.Fd()) }

// Publish gives a complete image its name, after every byte of it is on disk, and with sums its checksums.
func (p *Partial) Publish(sums bool) error {
	if err := Finish(context.Background(), p.Dir(), true, sums); err != nil {
		return fmt.Errorf("image directory: %w", err)
	}
	at := int(p.parent.Fd())
	if err := unix.Renameat(at, p.name, at, filepath.Base(p.dir)); err != nil { // it replaces an empty directory
		return fmt.Errorf("image directory %s: %w", p.dir, err)
	}
	named, err := os.Lstat(p.dir) // the name that people use, whatever became of the directories above
	if err != nil {
		return fmt.Errorf("image directory: %w", err)
	}
	if is, err := p.self.Stat(); err != nil || !os.SameFile(named, is) {
		return errors.Join(err, p.replaced())
	}
	return durable.Sync(fmt.Sprintf("/proc/self/fd/%d", at))
}

// Remove removes what was written, wherever the directory is now, and the directory, if it still has
// its name.
func (p *Partial) Remove() error {
	entries, err := os.ReadDir(p.Dir())
	for _, entry := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(p.Dir(), entry.Name())))
	}
	return errors.Join(err, unix.Unlinkat(int(p.parent.Fd()), p.name, unix.AT_REMOVEDIR))
}

// Close lets go of the directory, and of the claim.
func (p *Partial) Close() {
	for _, f := range []*os.File{p.Claim, p.self, p.parent} {
		f.Close() // nil where it was not opened
	}
}

// removeStalePartials removes the partial directories of dir whose writer has ended, except
// those that are needed.
func removeStalePartials(dir string, needed func(string) bool) error {
	entries, err := os.ReadDir(filepath.Dir(dir))
	if err != nil {
		return fmt.Errorf("image directory: %w", err)
	}
	for _, entry := range entries {
		pid, isPartial := strings.CutPrefix(entry.Name(), filepath.Base(dir)+partialInfix)
		writer, err := strconv.Atoi(pid)
		if !isPartial || err != nil || !entry.IsDir() {
			continue
		}
		partial := filepath.Join(filepath.Dir(dir), entry.Name())
		claimed := isClaimed(partial)
		process, err := proc.Open(writer)
		if err == nil {
			process.Close()
		}
		if err == nil && (claimed || writer != os.Getpid()) { // else we have the pid of one that was killed, as in a container
			if claimed {
				return fault.New(fmt.Sprintf("another dump into %s is at work (process %d)", dir, writer), "name another image directory")
			}
			continue
		}
		if claimed || needed(partial) {
			continue // claimed: its writer lives, in another pid namespace, or its watcher
		}
		if err := os.RemoveAll(partial); err != nil {
			return fmt.Errorf("remove the leftovers of a killed dump: %w", err)
		}
	}
	return nil
}

// IsBeingMade reports whether a dump into dir is at work.
func IsBeingMade(dir string) bool {
	entries, _ := os.ReadDir(filepath.Dir(dir))
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return strings.HasPrefix(e.Name(), filepath.Base(dir)+partialInfix) && isClaimed(filepath.Join(filepath.Dir(dir), e.Name()))
	})
}

// isClaimed reports whether a running dump has claimed a directory. It works across pid
// namespaces.
func isClaimed(dir string) bool {
	f, err := openDir(unix.AT_FDCWD, dir, dir)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// IsPartial reports whether a directory was made by [NewPartial].
func IsPartial(dir string) bool { return strings.Contains(filepath.Base(dir), partialInfix) }

// FinalName returns the name that a partial directory gets once it is complete. Any other
// directory has its final name.
func FinalName(dir string) string {
	if !IsPartial(dir) {
		return dir
	}
	name, _, _ := strings.Cut(filepath.Base(dir), partialInfix)
	return filepath.Join(filepath.Dir(dir), name)
}
