package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"

	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/pages"
	"cucriu/internal/kit/twice"
)

// CheckpointsDir is the directory of the checkpoints in that of a job.
const CheckpointsDir = twice.CheckpointsDir

const (
	lockName      = "lock"
	ownerName     = "owner.json"
	stagedDir     = "staged"
	partialPrefix = ".partial-"
)

var (
	// ErrBusy says that another process of this host has the store open.
	ErrBusy = errors.New("in use")
	// ErrFenced says that somebody else has become the owner of the store.
	ErrFenced = errors.New("fenced")
	// ErrReadOnly says that a store was opened by [View].
	ErrReadOnly = errors.New("opened for reading only")
)

// OpenOptions are the options of [Open].
type OpenOptions struct {
	// Takeover takes the store away from a host that has not released it.
	Takeover bool
	// Codec says how pages of GPUs that are not compressed yet are stored. The zero Codec leaves
	// them as they are.
	Codec pages.Codec
	// Log is where takeovers and warnings go. Nil discards them.
	Log *slog.Logger
}

// Store is the checkpoints of one job.
type Store struct {
	dir    string
	log    *slog.Logger
	owner  Owner        // zero in a view
	before Owner        // the previous owner; zero if there was none, or if it is not known
	lock   *flock.Flock // nil in a view
	made   []string     // the directories that Open made: this one and those above it
	closed atomic.Bool
	codec  pages.Codec

	mutex      sync.Mutex // one change of the checkpoints at a time
	stageMutex sync.Mutex
	staged     map[string]stage // staging directories of this store
	// interrupt is called at each step of a change. The tests set it.
	interrupt func(step string) error
}

// Open opens a store for a supervisor: it makes the directory if there is none, and takes
// the lock. The directory must be root's alone.
func Open(dir string, o OpenOptions) (*Store, error) {
	s, err := newStore(dir, o.Log)
	if err != nil {
		return nil, err
	}
	s.codec = o.Codec
	if err := durable.CheckPath("job directory", s.dir, 1); err != nil {
		return nil, err
	}
	if s.made, err = durable.MakeDirs("job directory", s.dir); err != nil {
		return nil, err
	}
	if err := checkDir(s.dir); err != nil {
		return nil, err
	}
	if err := s.acquire(o.Takeover); err != nil {
		return nil, fmt.Errorf("job directory %s: %w", s.dir, err)
	}
	for _, name := range []string{CheckpointsDir, stagedDir} {
		if err := os.Mkdir(s.path(name), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, errors.Join(fmt.Errorf("job directory: %w", err), s.Close())
		}
	}
	if err := durable.Sync(s.dir); err != nil {
		return nil, errors.Join(fmt.Errorf("job directory: %w", err), s.Close())
	}
	return s, nil
}

// View opens a store without its lock. A view can list, check, verify and pin.
func View(dir string) (*Store, error) {
	s, err := newStore(dir, nil)
	if err != nil {
		return nil, err
	}
	return s, checkDir(s.dir)
}

func newStore(dir string, log *slog.Logger) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("job directory: %w", err)
	}
	return &Store{dir: dir, log: cmp.Or(log, slog.New(slog.DiscardHandler)), staged: make(map[string]stage)}, nil
}

// Close releases the store. It waits for a change that is under way.
func (s *Store) Close() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.lock == nil || s.closed.Swap(true) {
		return nil
	}
	return s.release()
}

// Withdraw releases the store of a job that was refused, and removes the directories that Open made for
// it. Whoever waits for the lock finds that the locked file is gone.
func (s *Store) Withdraw() error {
	if !slices.Contains(s.made, s.dir) || s.Fenced() != nil {
		return s.Close()
	}
	err := os.RemoveAll(s.dir)
	durable.RemoveDirs(s.made)
	return errors.Join(err, s.Abandon())
}

func (s *Store) path(elements ...string) string {
	return filepath.Join(append([]string{s.dir}, elements...)...)
}

// checkpointDir returns the directory of a checkpoint, or of a partial one.
func (s *Store) checkpointDir(name string) string { return s.path(CheckpointsDir, name) }

// checkDir refuses a directory that others than root can change or read: root restores what
// is in it, and it holds the memory of the job.
func checkDir(dir string) error {
	var stat unix.Stat_t
	err := unix.Lstat(dir, &stat)
	if errors.Is(err, fs.ErrNotExist) {
		return away(dir, err)
	} else if err != nil {
		return fmt.Errorf("job directory %s: %w", dir, err)
	}
	switch {
	case stat.Mode&unix.S_IFMT == unix.S_IFLNK:
		return fault.New(fmt.Sprintf("job directory %s is a symbolic link", dir), "name the directory itself")
	case stat.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fault.New(fmt.Sprintf("job directory %s is not a directory", dir), "name a new one")
	case stat.Uid != 0:
		return fault.New(fmt.Sprintf("job directory %s belongs to user %d, but root restores its content", dir, stat.Uid), "name a new one, or chown root it and what is in it, if all of its content can be trusted")
	case stat.Mode&0o077 != 0:
		remedy := "chmod 700 it"
		if _, err := os.Lstat(filepath.Join(dir, CheckpointsDir)); err != nil { // it may be any directory
			remedy = "name a new directory; or, if this one is for this job alone, chmod 700 it"
		}
		return fault.New(fmt.Sprintf("job directory %s is accessible to other users (mode %#o), and it holds the memory of the job", dir, stat.Mode&0o7777), remedy)
	}
	return nil
}
