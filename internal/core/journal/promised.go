package journal

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cucriu/internal/core/inspect"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/rundir"
)

// WatcherLog is the name of a watcher's log in the directory of its session. The watcher has a lock on it until it
// ends, which is seen in every pid namespace.
const WatcherLog = "watcher.log"

// LockLog takes the lock on a watcher's log, for whoever inherits the file.
func LockLog(log *os.File) error {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	return os.NewSyscallError("lock "+log.Name(), unix.FcntlFlock(log.Fd(), unix.F_OFD_SETLK, &lock))
}

// isWatched reports whether the watcher of a session lives.
func isWatched(dir string) bool {
	log, err := os.Open(filepath.Join(dir, WatcherLog))
	if err != nil {
		return false
	}
	defer log.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	return unix.FcntlFlock(log.Fd(), unix.F_OFD_GETLK, &lock) == nil && lock.Type != unix.F_UNLCK
}

// Promised returns how much GPU memory sessions that are at work on this host, also in sandboxes, need to bring their
// processes back. A restore must leave it to them: what a dump has freed looks free, and a process for which there is
// no room any more is lost. Of restores only those count that began before of, so that no two wait for each other; all
// do if of is nil. What is held for the same decision is the same job. Sessions that cannot be read do not count.
func Promised(runDir string, of *Session, hold *Hold) inspect.MemoryNeed {
	need := make(inspect.MemoryNeed)
	for _, s := range atWork(runDir, of, hold) {
		s.promise(need)
	}
	return need
}

// PromisedMemory returns in the same way what restores still need of the host's memory. What their processes have by
// now is not available any more.
func PromisedMemory(runDir string, of *Session, hold *Hold) (needs []inspect.HostNeed) {
	for _, s := range atWork(runDir, of, hold) {
		if need := s.HostMemory; s.Outcome == "" && !s.Restored && need.Bytes > s.Resident {
			need.Bytes -= s.Resident
			needs = append(needs, need)
		}
	}
	return needs
}

// atWork returns the sessions that [Promised] counts.
func atWork(runDir string, of *Session, hold *Hold) (sessions []*Session) {
	if host := outer(runDir); host != "" {
		runDir = host
	}
	for _, runDir := range append(related(runDir), runDir) {
		dirs, _ := Dirs(filepath.Join(runDir, rundir.Sessions))
		for _, dir := range dirs {
			if of != nil && dir == of.dir || !isWatched(dir) {
				continue
			}
			s, err := Read(dir)
			isLater := of != nil && s.Kind == KindRestore && !s.Created.Before(of.Created)
			isSame := hold != nil && s.Hold != nil && s.Hold.ID == hold.ID
			if err == nil && !isLater && !isSame {
				sessions = append(sessions, s)
			}
		}
	}
	return sessions
}

// promise adds what the processes of a session need on their way back.
func (r *Record) promise(need inspect.MemoryNeed) {
	switch {
	case r.Outcome != "" || !r.MayBeCheckpointed() || r.Suspended():
	case r.Kind == KindRestore:
		for _, p := range r.Manifest.Processes {
			need.Add(p.MemoryBytes, r.Plan.Of(p.GPUs))
		}
	default:
		for _, m := range r.Members {
			if !hasEnded(m.Ident) {
				need.Add(m.MemoryBytes, m.Pairs)
			}
		}
	}
}

// hasEnded reports whether a process has ended, such as that of a dump which its watcher is about to close. Of one in
// another pid namespace nothing is known.
func hasEnded(id proc.Ident) bool {
	p, err := proc.Reopen(id)
	if err != nil {
		return errors.Is(err, proc.ErrGone)
	}
	defer p.Close()
	return !p.Alive()
}
