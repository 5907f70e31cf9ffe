package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/jobs/store"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
)

// The directory of a job that runs may be removed, hidden by a mount, or replaced by a copy, and
// knows nothing of the job then. The run directory of the host still does, so both are asked, here
// and nowhere else, before anything is written.

// claimName is the file in a job's folder of the run directory that its supervisor locks.
const claimName = "supervisor"

// claimPatience is how long a supervisor is waited for that is ending, or just begins.
const claimPatience, claimPause = 5 * time.Second, 20 * time.Millisecond

// claim makes this process the only supervisor of the job on this host until release is called. It
// fails if the directory is another job's, or if the job runs and its directory does not know that.
// It returns what the host knows of the job.
func (s *supervisor) claim(ctx context.Context) (known Local, release func(), err error) {
	var locks []*flock.Flock
	release = func() {
		for _, lock := range locks {
			lock.Close()
		}
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	take := func(folder string) error {
		s.runDir = folder
		lock, err := lockClaim(ctx, folder)
		locks = append(locks, lock)
		return err
	}
	where, err := whereIs(s.Dir)
	if err != nil {
		return known, release, err
	}
	if err := take(localDir(s.hook.Config.RunDir, s.Dir)); err != nil {
		return known, release, err
	}
	folder, known, err := findKnown(s.hook.Config.RunDir, s.Dir, where)
	if err == nil && folder != s.runDir {
		err = take(folder)
	}
	if err != nil {
		return known, release, err
	}
	// Nothing is read from a directory that somebody else may have filled.
	if s.store, err = store.View(s.Dir); err == nil {
		err = store.CheckDir("job directory", s.Dir)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return known, release, err
	}
	if s.record, _, err = readRecord(s.Options); err != nil {
		return known, release, err
	}
	p, err := s.findAlive(folder, known)
	if p != nil {
		err = errors.Join(err, p.Close())
	}
	known.Where = append(known.Where, where...)
	slices.Sort(known.Where)
	known.Where = slices.Compact(known.Where)
	return known, release, err
}

// lockClaim locks the folder of a job in the run directory.
func lockClaim(ctx context.Context, folder string) (*flock.Flock, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	lock := flock.New(filepath.Join(folder, claimName))
	for begin := time.Now(); ; time.Sleep(claimPause) {
		locked, err := lock.TryLock()
		if err != nil {
			return lock, fmt.Errorf("run directory: %w", err)
		}
		if locked {
			return lock, nil
		}
		l, err := readLocal(folder)
		switch {
		// A child that a killed supervisor was just starting has its sockets and locks a moment longer.
		case err == nil && l.PID != 0 && !isEnding(l.PID):
			return lock, fmt.Errorf("job directory %s: %w by process %d", l.Dir, store.ErrBusy, l.PID)
		case time.Since(begin) > claimPatience:
			return lock, fmt.Errorf("%s: %w by another process", lock.Path(), store.ErrBusy)
		case ctx.Err() != nil:
			return lock, context.Cause(ctx)
		}
	}
}

// isEnding reports whether a supervisor is gone, or was killed and will be.
func isEnding(pid int) bool {
	p, err := proc.Open(pid)
	if err != nil {
		return errors.Is(err, proc.ErrGone)
	}
	defer p.Close()
	return p.Exiting()
}

// findKnown finds what the run directory says of a job that runs in a directory, or would. What it says
// of a job at the same path that does not run does not count for one of another path.
func findKnown(runDir, dir string, where []string) (folder string, known Local, err error) {
	own := localDir(runDir, dir)
	folders, err := entries(filepath.Join(runDir, journal.JobsName), "")
	for _, f := range folders {
		l, err := readLocal(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return own, Local{}, fmt.Errorf("whether the job of %s runs cannot be told: %w: if none of this host runs, remove that file", dir, err)
		}
		isSame := f == own || slices.ContainsFunc(l.Where, func(w string) bool { return slices.Contains(where, w) })
		if isSame && (l.alive || l.PID != 0) {
			return f, l, nil
		}
	}
	return own, Local{Dir: dir}, err
}

// findAlive attaches to the sandbox of the job, if that is alive: the directory and the run directory
// must agree on that. known is what the latter says, in a folder.
func (s *supervisor) findAlive(folder string, known Local) (*sandbox.Sandbox, error) {
	p, _, err := s.findSandbox()
	if err != nil && (!errors.Is(err, sandbox.ErrGone) || errors.Is(err, sandbox.ErrElsewhere)) {
		if errors.Is(err, sandbox.ErrGone) { // the fence ends it
			err = nil
		}
		return nil, err
	}
	if known.alive && p == nil { // it may have ended meanwhile
		if known, err = readLocal(folder); err != nil {
			return nil, err
		}
	}
	if !known.alive || p != nil && (known.Init == nil || p.Init() == *known.Init) {
		return p, nil
	}
	if p != nil {
		p.Close()
	}
	who := "its first process is not known"
	if known.Init != nil {
		who = fmt.Sprintf("kill -9 %d", known.Init.PID)
	}
	return nil, fmt.Errorf("the job of %s runs on this host, and what is at %s now is not the directory that it runs in, which was removed, replaced, or is hidden by a mount: bring that back, or end the job first (%s)", known.Dir, s.Dir, who)
}

// whereIs returns what a directory is recognized by, also when it is not there any more, or by another
// path: its path as it was named and without symbolic links, its inode, and its name in the inode of
// the directory above.
func whereIs(dir string) ([]string, error) {
	where := []string{dir}
	for at, rest := dir, ""; ; at, rest = filepath.Dir(at), filepath.Join(filepath.Base(at), rest) {
		var stat unix.Stat_t
		err := unix.Stat(at, &stat)
		if errors.Is(err, fs.ErrNotExist) && at != "/" {
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "stat", Path: at, Err: err}
		}
		where = append(where, fmt.Sprintf("%d:%d/%s", stat.Dev, stat.Ino, rest))
		if rest == "" && at != "/" {
			continue // and by its name in the one above
		}
		path, err := filepath.EvalSymlinks(at)
		return append(where, filepath.Join(path, rest)), err
	}
}
