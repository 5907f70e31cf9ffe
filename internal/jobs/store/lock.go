package store

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"

	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/twice"
)

// ownedBy says that a host owns the store that has not released it, and which cannot be asked from
// here; err is why its record cannot be read.
func ownedBy(owner Owner, err error) error {
	meaning := fmt.Sprintf("it belongs to %v, which has not released it", owner)
	if err != nil {
		meaning = fmt.Sprintf("its owner is unknown: %v", err)
	}
	return fault.Because(err, meaning, "make sure that the job no longer runs there, and take over the directory with cucriu run --dir DIR --takeover")
}

// acquire makes this process the owner of the store.
func (s *Store) acquire(takeover bool) error {
	self, err := thisOwner()
	if err != nil {
		return err
	}
	start := twice.Start{As: twice.Long(s.dir), Takeover: takeover}
	lock, err := s.takeLock(self, start)
	if err != nil {
		return err
	}
	last, err := readOwner(s.dir)
	var seen []twice.Fact
	switch {
	case err != nil:
		seen = s.seen(twice.Unknown)
	case last.isElsewhere(self):
		seen = s.seen(twice.Elsewhere)
	}
	switch {
	case twice.May(start, seen...) != nil:
		return errors.Join(ownedBy(last, err), lock.Close())
	case err != nil:
		s.log.Warn("The job directory is taken over, although its last owner is unknown", "dir", s.dir, "error", err)
		last.Generation = uint64(time.Now().UnixNano()) // above any that was counted up
	case last.isElsewhere(self):
		s.log.Warn("The job directory is taken over", "dir", s.dir, "from", last.String())
	}
	s.before = last
	self.Generation = last.Generation + 1
	if err := ownerKind.Write(s.dir, self); err != nil {
		return errors.Join(err, lock.Close())
	}
	s.owner, s.lock = self, lock
	return nil
}

// seen is what was seen of the job of the store.
func (s *Store) seen(what twice.Seen) []twice.Fact {
	return []twice.Fact{{Seen: what, Of: twice.Long(s.dir)}}
}

// lockPatience is how long a lock is waited for whose owner has ended. A child that the owner
// was just starting may have it a moment longer.
const lockPatience, lockPause = 5 * time.Second, 20 * time.Millisecond

// takeLock takes the lock of the store. A lock that another host holds is broken if the start is a
// takeover: the file is replaced by one that we hold.
func (s *Store) takeLock(self Owner, start twice.Start) (*flock.Flock, error) {
	lock := newLock(s.path(lockName))
	for begin := time.Now(); ; time.Sleep(lockPause) {
		locked, err := TryLock(lock)
		if err != nil {
			return nil, fmt.Errorf("lock it: %w", err)
		}
		if locked {
			return lock, nil
		}
		owner, err := readOwner(s.dir)
		who := twice.Busy
		if err == nil && owner.isElsewhere(self) {
			who = twice.Elsewhere
		}
		switch {
		case twice.May(start, s.seen(who)...) == nil:
			return s.breakLock()
		case who == twice.Elsewhere:
			return nil, ownedBy(owner, nil)
		case err != nil || owner.Released:
			err = fmt.Errorf("%w: another process has it open", ErrBusy)
		default:
			err = fmt.Errorf("%w by %v", ErrBusy, owner)
		}
		if time.Since(begin) > lockPatience || owner.lives() {
			return nil, err
		}
	}
}

func newLock(path string) *flock.Flock {
	// Over NFS, an exclusive lock needs a file that is open for writing.
	return flock.New(path, flock.SetFlag(os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW))
}

// TryLock locks a file that others replace or remove: what is locked is the one with the name.
func TryLock(lock *flock.Flock) (bool, error) {
	for {
		locked, err := lock.TryLock()
		if err != nil || !locked || isCurrent(lock) {
			return locked, err
		}
		if err := lock.Close(); err != nil {
			return false, err
		}
	}
}

// isCurrent reports whether the locked file is still the one with the name.
func isCurrent(lock *flock.Flock) bool {
	held, err := lock.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(lock.Path())
	return err == nil && os.SameFile(held, named)
}

// lives reports whether the owner, which is of this host, runs. It is true if that cannot be
// told.
func (o Owner) lives() bool {
	process, err := proc.Reopen(o.Ident)
	if err != nil {
		return !errors.Is(err, proc.ErrGone)
	}
	process.Close()
	return true
}

// breakLock puts a lock file that we hold in the place of one that another host holds.
func (s *Store) breakLock() (*flock.Flock, error) {
	path := s.path(lockName)
	if err := os.Remove(path); err != nil {
		return nil, fmt.Errorf("break the lock: %w", err)
	}
	lock := newLock(path)
	locked, err := TryLock(lock)
	if err == nil && !locked {
		err = fmt.Errorf("%w: another program is taking it over", ErrBusy)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("break the lock: %w", err), lock.Close())
	}
	return lock, nil
}

// release says that the store has no owner any more, and gives the lock back.
func (s *Store) release() error {
	err := s.Fenced()
	if err == nil {
		s.owner.Released = true
		err = ownerKind.Write(s.dir, s.owner)
	} else if errors.Is(err, ErrFenced) {
		err = nil // the store is somebody else's to give back
	}
	return errors.Join(err, s.lock.Close())
}

// Abandon closes the store without giving it back: what belongs to its owner stays on this host.
// On this host it can be opened again at once; another host needs [OpenOptions.Takeover].
func (s *Store) Abandon() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.lock == nil {
		return nil
	}
	err := s.lock.Close()
	s.lock = nil
	return err
}
