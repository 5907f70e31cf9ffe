package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/rundir"
)

// lease is the right to run the job of a directory. It is taken in this order, and each mark is there
// for something that the others do not see:
//
//	supervisor   in the run directory, locked    another supervisor of this host, although the directory of
//	             while a supervisor lives        the job was removed, hidden by a mount, or replaced by a copy
//	alive        in the run directory and in     a job without a supervisor, from every container and pid
//	             the sandbox's folder, locked    namespace
//	             while its init lives
//	move.json    in the directory of the job     another host to which the job belongs, or may
//	lock, owner  in the directory of the job     supervisors of other hosts; the one that has lost it is fenced
//	host         in the directory of the job     a sandbox elsewhere that nobody is left to end: its init
//	                                             watches this file and ends when it names another owner
//
// Nothing is written in the directory of the job before all but the last two have been looked at.
type lease struct {
	*core
	locks []*flock.Flock
	known Local // what the run directory says of the job
}

const (
	claimName = "supervisor" // in a job's folder of the run directory
	fenceName = "host"       // in the job's directory
)

// claimPatience is how long a supervisor is waited for that is ending, or just begins.
const claimPatience, claimPause = 5 * time.Second, 20 * time.Millisecond

// claim makes this process the only supervisor of the job on this host. It fails if the directory is
// another job's, or if the job runs and its directory does not know that.
func (s *lease) claim(ctx context.Context) error {
	where, err := whereIs(s.Dir)
	if err != nil {
		return err
	}
	runDir := s.hook.Config.RunDir
	if err := s.lock(ctx, localDir(runDir, s.Dir)); err != nil {
		return err
	}
	folder, known, err := findKnown(runDir, s.Dir, where)
	if err == nil && folder != s.runDir {
		err = s.lock(ctx, folder)
	}
	if err != nil {
		return err
	}
	if err := checkNew(s.Dir); err != nil && !known.alive { // else something hides the job's directory
		return err
	}
	// Nothing is read from a directory that somebody else may have filled.
	if s.store, err = store.View(s.Dir); err == nil {
		err = durable.CheckPath("job directory", s.Dir, 0)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if s.record, _, err = readRecord(s.Options); err != nil {
		return err
	}
	p, err := findAlive(s.Options, folder, known)
	if p != nil {
		s.runsOn = true // until it is attached to, and after
		err = errors.Join(err, p.Close())
	}
	s.known = known
	s.known.Where = append(slices.Clone(known.Where), where...)
	slices.Sort(s.known.Where)
	s.known.Where = slices.Compact(s.known.Where)
	return err
}

// checkNew refuses an image, and a directory with other content than a job's that others can read: it was
// probably not meant. A job whose record is missing has the lock, which is made first, or what a removal leaves.
func checkNew(dir string) error {
	all, _ := os.ReadDir(dir) // what is wrong with the directory itself, others say
	has := func(names []string, want bool) bool {
		return slices.ContainsFunc(all, func(e os.DirEntry) bool { return slices.Contains(names, e.Name()) == want })
	}
	if has([]string{recordName, "lock", "owner.json", moveName, moveLockName}, true) || !has(append(OwnFiles(), SupervisorLog, "lost+found"), false) {
		return nil
	}
	if info, err := os.Stat(dir); !imagedir.IsAmong(all) && (err != nil || info.Mode().Perm()&0o077 == 0) {
		return nil
	}
	return UsageError{fault.New(dir+" is not empty and not the directory of a job", "name a new directory")}
}

// UsageError is wrong usage of the command line: it would fail again.
type UsageError struct{ error }

func (e UsageError) Unwrap() error { return e.error }

// release gives back what the run directory knows of the lease; the store gives back the rest.
func (s *lease) release() {
	for _, lock := range s.locks {
		lock.Close()
	}
}

// lock locks the folder of a job in the run directory.
func (s *lease) lock(ctx context.Context, folder string) error {
	s.runDir = folder
	lock := flock.New(filepath.Join(folder, claimName))
	s.locks = append(s.locks, lock)
	for begin := time.Now(); ; time.Sleep(claimPause) {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return fmt.Errorf("run directory: %w", err)
		}
		locked, err := store.TryLock(lock)
		if errors.Is(err, fs.ErrNotExist) && time.Since(begin) < claimPatience { // cucriu jobs rm has just removed the folder
			continue
		}
		if err != nil {
			return fmt.Errorf("run directory: %w", err)
		}
		if locked {
			return nil
		}
		l, err := readLocal(folder)
		switch {
		// A child that a killed supervisor was just starting has its sockets and locks a moment longer.
		case err == nil && l.PID != 0 && !proc.IsEnding(l.PID):
			return fault.Because(store.ErrBusy, fmt.Sprintf("%s already runs here, under cucriu run (process %d)", l.Name, l.PID), fmt.Sprintf("to see it, cucriu jobs show %s; to end it, cucriu jobs stop %[1]s", l.Name))
		case time.Since(begin) > claimPatience:
			return fmt.Errorf("%s: %w by another process", lock.Path(), store.ErrBusy)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
	}
}

// findKnown finds what the run directory says of a job that runs in a directory, or would. What it says
// of a job at the same path that does not run does not count for one of another path.
func findKnown(runDir, dir string, where []string) (folder string, known Local, err error) {
	own := localDir(runDir, dir)
	folders, err := entries(filepath.Join(runDir, rundir.Jobs), "")
	for _, f := range folders {
		l, err := readLocal(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return own, Local{}, fmt.Errorf("cannot tell whether the job of %s runs: %w: if no job of this host runs, remove that file", dir, err)
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
func findAlive(o Options, folder string, known Local) (*sandbox.Sandbox, error) {
	p, _, err := findSandbox(o)
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
	who := "its first process is unknown"
	if known.Init != nil {
		who = fmt.Sprintf("kill -9 %d", known.Init.PID)
	}
	return nil, fmt.Errorf("the job of %s runs on this host, but %s is no longer the directory that it runs in, which was removed, replaced, or is hidden by a mount: restore that directory, or end the job first (%s)", known.Dir, o.Dir, who)
}

// RequireGone fails unless the job of a directory is known not to run on this host.
func RequireGone(runDir, dir string) error {
	where, err := whereIs(dir)
	if err != nil {
		return err
	}
	folder, known, err := findKnown(runDir, dir, where)
	if err != nil {
		return err
	}
	p, err := findAlive(Options{Dir: dir}, folder, known)
	if p == nil {
		return err
	}
	return errors.Join(errors.New("it runs without a supervisor: cucriu run --dir "+dir+" supervises it again"), err, p.Close())
}

// RefuseVanished fails if this host knows a job of a directory that has none now.
func RefuseVanished(runDir, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	l, err := readLocal(localDir(runDir, dir))
	if err != nil { // none is known
		return nil
	}
	if err := RequireGone(runDir, dir); err != nil {
		return err
	}
	had := fmt.Sprintf("it had the job %s (%s)", l.Name, l.Describe())
	return fault.New(dir+" was moved or removed, or is not mounted: "+had,
		"bring it back; or, if nothing of that job is needed, specify the command of another one")
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

// raiseFence says in the job's directory that the job belongs here. If it may still run
// elsewhere, because its sandbox there was not ended, raiseFence waits until that sandbox must have
// seen it and ended.
func (s *lease) raiseFence(ctx context.Context) (fence sandbox.Fence, err error) {
	defer func() {
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("where the job runs: %w", err)
		}
	}()
	self, err := proc.IdentOf(os.Getpid())
	if err != nil {
		return fence, err
	}
	boot, err := proc.BootID()
	if err != nil {
		return fence, err
	}
	owner, err := s.store.Owner()
	if err != nil {
		return fence, err
	}
	fence = sandbox.Fence{Path: filepath.Join(s.Dir, fenceName), Text: sandbox.FenceText(boot, self.PIDNamespace, owner.Generation)}
	before, err := os.ReadFile(fence.Path)
	isFirst := errors.Is(err, fs.ErrNotExist)
	info, statErr := os.Stat(fence.Path)
	if err := errors.Join(err, statErr); !isFirst && err != nil {
		return fence, err
	}
	err = renameio.WriteFile(fence.Path, []byte(fence.Text), 0o600, renameio.WithTempDir(s.Dir))
	if err := durable.OnFullDisk(err, fence.Path, []byte(fence.Text)); err != nil {
		return fence, err
	}
	raised, why := time.Now(), fmt.Sprintf("%s ran on another host, or before a reboot, and was not ended there (%s)", s.record.Name, strings.TrimSpace(string(before)))
	switch {
	case isFirst: // and nobody need ever be waited for because of it
		return fence, os.Chtimes(fence.Path, time.Time{}, raised.Add(-2*sandbox.FencePeriod))
	case strings.HasPrefix(string(before), fmt.Sprintf("%s %d ", boot, self.PIDNamespace)):
		// Sandboxes elsewhere have had to end since this host's first fence.
		raised, why = info.ModTime(), "this host had just taken the job over"
		if err := os.Chtimes(fence.Path, time.Time{}, raised); err != nil {
			return fence, err
		}
	}
	pause := 2*sandbox.FencePeriod - max(0, time.Since(raised))
	if left, err := sandboxDirs(s.Dir); err != nil || pause <= 0 || len(left) == 0 {
		return fence, err
	}
	s.say(fmt.Sprintf("%s: waiting %v, after which it must have ended", why, pause.Round(time.Second)))
	return fence, wait(ctx, pause)
}

// The records of a job's sandbox are in a folder of the job's directory: whoever runs the job next finds
// the sandbox there, whatever run directory it has.

const sandboxPrefix = "place-"

var sandboxName = regexp.MustCompile(`^` + sandboxPrefix + `[0-9]+$`)

func sandboxDirs(dir string) ([]string, error) {
	paths, err := entries(dir, sandboxPrefix)
	return slices.DeleteFunc(paths, func(path string) bool { return !sandboxName.MatchString(filepath.Base(path)) }), err
}

// entries lists what is in a directory and has a prefix. A directory that cannot be read is an error,
// and not empty.
func entries(dir, prefix string) (paths []string, err error) {
	all, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, entry := range all {
		if strings.HasPrefix(entry.Name(), prefix) {
			paths = append(paths, filepath.Join(dir, entry.Name()))
		}
	}
	return paths, err
}

// removeSandboxes removes what is left of sandboxes that are gone.
func removeSandboxes(dir string) error {
	dirs, err := sandboxDirs(dir)
	for _, dir := range dirs {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// findSandbox attaches to the sandbox of the job. If that is gone, it tells how the job had ended in
// it, as far as that is known.
func findSandbox(o Options) (*sandbox.Sandbox, *sandbox.Exit, error) {
	dirs, err := sandboxDirs(o.Dir)
	if err != nil {
		return nil, nil, err
	}
	var exit *sandbox.Exit
	gone := sandbox.ErrGone
	for _, dir := range dirs {
		p, err := sandbox.Attach(dir)
		switch {
		case errors.Is(err, sandbox.ErrElsewhere) && o.Takeover: // it ends when the fence is raised
			gone = errors.Join(sandbox.ErrGone, err)
		case errors.Is(err, sandbox.ErrElsewhere):
			return nil, nil, fmt.Errorf("%w: run this command there, or give --takeover, which loses what the job has done since its last checkpoint", err)
		case !errors.Is(err, sandbox.ErrGone):
			return p, nil, err
		}
		if exit, err = sandbox.LastExit(dir); err != nil {
			return nil, nil, err
		}
	}
	return nil, exit, gone
}
