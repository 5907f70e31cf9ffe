package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"cucriu/internal/durable"
	"cucriu/internal/fault"
	"cucriu/internal/pages"
)

const (
	lockName       = "lock"
	ownerName      = "owner.json"
	checkpointsDir = "checkpoints"
	stagedDir      = "staged"
	partialPrefix  = ".partial-"
	maxWorkers     = 64
)

var (
	// ErrBusy says that another process of this host has the store open.
	ErrBusy = errors.New("in use")
	// ErrFenced says that somebody else has become the owner of the store.
	ErrFenced = errors.New("fenced")
	// ErrReadOnly says that a store was opened by [View].
	ErrReadOnly = errors.New("opened to look at only")
)

// OpenOptions are the options of [Open].
type OpenOptions struct {
	// Takeover takes the store away from a host that has not given it back.
	Takeover bool
	// BytesPerSecond limits how fast [Store.Publish] copies and [Store.Verify] reads; 0 is no
	// limit.
	BytesPerSecond int64
	// Codec says how pages of GPUs that are not compressed yet are stored. The zero Codec leaves
	// them as they are.
	Codec pages.Codec
	// Workers is how many threads compare and compress at a publication; 0 is 2. Each writes a
	// file of its own.
	Workers int
	// Log is where takeovers and warnings go. Nil discards them.
	Log *slog.Logger
}

// Store is the checkpoints of one job.
type Store struct {
	dir     string
	log     *slog.Logger
	owner   Owner        // zero in a view
	before  Owner        // who owned it before; zero if nobody did, or if that is not known
	lock    *flock.Flock // nil in a view
	closed  atomic.Bool
	limiter *rate.Limiter
	codec   pages.Codec
	workers int

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
	s.SetRate(o.BytesPerSecond)
	s.codec, s.workers = o.Codec, cmp.Or(o.Workers, 2)
	if s.workers < 0 || s.workers > maxWorkers {
		return nil, fmt.Errorf("job directory: %d workers", s.workers)
	}
	if err := checkWay("job directory", s.dir, 1); err != nil {
		return nil, err
	}
	if err := makeDir(s.dir); err != nil {
		return nil, err
	}
	if err := s.acquire(o.Takeover); err != nil {
		return nil, fmt.Errorf("job directory %s: %w", s.dir, err)
	}
	for _, name := range []string{checkpointsDir, stagedDir} {
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
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Store{dir: dir, log: log, limiter: rate.NewLimiter(rate.Inf, pieceBytes), staged: make(map[string]stage)}, nil
}

// Close gives the store back. It waits for a change that is under way.
func (s *Store) Close() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.lock == nil || s.closed.Swap(true) {
		return nil
	}
	return s.release()
}

// Dir returns the directory, as an absolute path.
func (s *Store) Dir() string { return s.dir }

// SetRate changes how fast [Store.Publish] copies and [Store.Verify] reads, also while they do:
// 0 is no limit.
func (s *Store) SetRate(bytesPerSecond int64) {
	limit := rate.Inf
	if bytesPerSecond > 0 {
		limit = rate.Limit(bytesPerSecond)
	}
	s.limiter.SetLimit(limit)
}

// pay waits until n bytes may be copied or read.
func (s *Store) pay(ctx context.Context, n int) error {
	err := s.limiter.WaitN(ctx, n)
	if err != nil && ctx.Err() == nil { // the limiter does not wait for what comes after the deadline
		return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return err
}

// isGivenUp reports whether an error says nothing but that somebody did not want to wait.
func isGivenUp(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

func (s *Store) path(elements ...string) string {
	return filepath.Join(append([]string{s.dir}, elements...)...)
}

// checkpointDir returns the directory of a checkpoint, or of a partial one.
func (s *Store) checkpointDir(name string) string { return s.path(checkpointsDir, name) }

// makeDir makes a directory that is root's alone.
func makeDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("job directory: %w", err)
	}
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		err = durable.Sync(filepath.Dir(dir))
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("job directory: %w", err)
	}
	return checkDir(dir)
}

// checkDir refuses a directory that others than root can change or read: root restores what
// is in it, and it holds the memory of the job.
func checkDir(dir string) error {
	var stat unix.Stat_t
	if err := unix.Lstat(dir, &stat); err != nil {
		return fmt.Errorf("job directory %s: %w", dir, err)
	}
	switch {
	case stat.Mode&unix.S_IFMT == unix.S_IFLNK:
		return fault.New(fmt.Sprintf("job directory %s is a symbolic link", dir), "name the directory itself")
	case stat.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fault.New(fmt.Sprintf("job directory %s is not a directory", dir), "name a new one")
	case stat.Uid != 0:
		return fault.New(fmt.Sprintf("job directory %s belongs to user %d, and root restores what it holds", dir, stat.Uid), "name a new one, or chown root it and what is in it, if all of that can be trusted")
	case stat.Mode&0o077 != 0:
		return fault.New(fmt.Sprintf("job directory %s is open to others (mode %#o), and it holds the memory of the job", dir, stat.Mode&0o7777), "chmod 700 it")
	}
	return nil
}
