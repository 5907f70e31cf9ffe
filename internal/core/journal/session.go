package journal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/hooks/timeline"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/rundir"
)

const (
	timelineFile = "timeline.json"
	keepSessions = 64 // closed sessions are kept to show what became of the jobs
)

// ErrBusy is the error for a session that another process is working on.
var ErrBusy = errors.New("session is in use by its hook or watcher")

// Session is an open record. A session from [Load], [LoadWithin] or [Create] is locked until
// [Session.Unlock].
type Session struct {
	Record
	// By says whose time the phases are that are noted from now on: see [timeline.Phase.By].
	By string

	dir  string
	lock *flock.Flock
	mu   sync.Mutex // guards Phases and what Update changes, and keeps saves in order
}

// Name returns the session's name in the run directory.
func (s *Session) Name() string { return filepath.Base(s.dir) }

// Dir returns the session's directory.
func (s *Session) Dir() string { return s.dir }

// leastRoom is what a run directory must have free, in bytes: a session that cannot be written any more tells nobody how
// it stands.
const leastRoom = 256 << 10

func requireRoom(runDir string) error {
	var disk unix.Statfs_t
	if err := unix.Statfs(runDir, &disk); err != nil {
		return &os.PathError{Op: "statfs", Path: runDir, Err: err}
	}
	if free := disk.Bavail * uint64(disk.Bsize); free < leastRoom && disk.Blocks > 0 { // some file systems do not say
		return fault.Because(unix.ENOSPC, fmt.Sprintf("the run directory %s has %d KiB free", runDir, free>>10), fmt.Sprintf("free %d KiB there", leastRoom>>10))
	}
	return nil
}

// Create makes the session of a running criu and locks it. A process, a criu and an image directory may
// be in one open session only. begun is when it began, as time since boot; 0 means now.
func Create(runDir string, record Record, begun time.Duration) (*Session, error) {
	s := &Session{Record: record}
	s.Version = recordVersion
	if _, err := rundir.MakeSessions(runDir); err != nil {
		return nil, err
	}
	if err := requireRoom(runDir); err != nil {
		return nil, err
	}
	creating := flock.New(lockPath(runDir))
	if err := creating.Lock(); err != nil {
		return nil, fmt.Errorf("session: %w", err)
	}
	defer creating.Close()
	all, newer, err := list(runDir)
	if err = errors.Join(err, newer); err == nil {
		err = tidy(runDir, all)
	}
	if err != nil {
		return nil, err
	}
	if other, err := findOpen(all, runDir, s.Criu, s.Members); err != nil || other != nil {
		return nil, errors.Join(err, other.Conflict())
	}
	if err := s.checkUnclaimed(all); err != nil {
		return nil, err
	}
	s.dir = Path(runDir, s.Kind, s.Criu)
	s.Created, s.CreatedClock = time.Now().UTC(), timeline.SinceBoot()
	if begun > 0 {
		s.CreatedClock = begun
		s.Created = s.Created.Add(begun - timeline.SinceBoot())
	}
	if s.BootID, err = proc.BootID(); err != nil {
		return nil, err
	}
	// One criu may serve several requests, one after another.
	switch other, err := Read(s.dir); {
	case err == nil && other.Outcome == "":
		return nil, other.Conflict() // a criu with the same pid, in another pid namespace
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return nil, err // what parked threads need may lie beside the record
	}
	if err := os.RemoveAll(s.dir); err != nil {
		return nil, fmt.Errorf("session: %w", err)
	}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("session: %w", err)
	}
	s.lock = flock.New(filepath.Join(s.dir, "lock"))
	if err := s.lock.Lock(); err != nil { // it waits for a process that looks whether the session is orphaned
		return nil, err
	}
	if err := s.Save(); err != nil {
		s.Unlock()
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	_ = dropRefusals(runDir, &s.Record) // they only inform
	return s, nil
}

// checkUnclaimed refuses a dump into the directory of another dump that is still open.
func (s *Session) checkUnclaimed(all []*Session) error {
	dir, err := os.Stat(s.ImageDir)
	if err != nil || s.Kind != KindDump {
		return nil // if there is none, no other dump goes there either
	}
	for _, other := range DumpsInto(all, dir) {
		if other.Outcome == "" {
			return other.ClaimConflict()
		}
	}
	return nil
}

// Load reads a session and locks it. If another process holds the lock, Load waits if wait is set, and
// fails with [ErrBusy] if not.
func Load(dir string, wait bool) (*Session, error) {
	s := &Session{dir: dir, lock: flock.New(filepath.Join(dir, "lock"))}
	if wait {
		if err := s.lock.Lock(); err != nil {
			return nil, err
		}
	} else if locked, err := s.lock.TryLock(); err != nil || !locked {
		return nil, cmp.Or(err, ErrBusy)
	}
	return s.loaded()
}

// LoadWithin is [Load], but waits for the lock until ctx ends.
func LoadWithin(ctx context.Context, dir string) (*Session, error) {
	s := &Session{dir: dir, lock: flock.New(filepath.Join(dir, "lock"))}
	if locked, err := s.lock.TryLockContext(ctx, 20*time.Millisecond); !locked {
		return nil, errors.Join(ErrBusy, err)
	}
	return s.loaded()
}

func (s *Session) loaded() (*Session, error) {
	if err := s.readRecord(); err != nil {
		s.Unlock()
		return nil, err
	}
	return s, nil
}

// Read reads a session as it is now, without taking its lock.
func Read(dir string) (*Session, error) {
	s := &Session{dir: dir}
	return s, s.readRecord()
}

func (s *Session) readRecord() (err error) {
	s.Record, err = recordKind.Read(s.dir)
	return err
}

// Unlock releases the session's lock.
func (s *Session) Unlock() { _ = s.lock.Close() }

// Save writes the record to disk durably.
func (s *Session) Save() error {
	s.mu.Lock()
	defer s.mu.Unlock() // held until the end: an older record must not replace a newer one
	for i := range s.Members {
		if s.Members[i].Gated {
			s.Version = max(s.Version, gatedVersion)
		}
		if m := &s.Members[i]; m.Own == nil && s.Outcome == "" {
			if own, err := m.Ident.Own(); err == nil { // else it has ended
				m.Own = &own
			}
		}
	}
	if err := recordKind.Write(s.dir, s.Record); err != nil {
		return fmt.Errorf("write to the run directory: %w", err)
	}
	return nil
}

// Update changes the record while other goroutines may save it.
func (s *Session) Update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// Begin writes ahead that a step begins: it makes that durable before the step does anything.
func (s *Session) Begin(step Step) error {
	s.Step = step
	return s.Save()
}

// Span does something for one process of the session, and notes how long it took. It is safe for use by
// several goroutines.
func (s *Session) Span(pid int, name string, do func() error) error {
	start := s.now()
	err := do()
	s.NotePhase(start, timeline.Phase{Name: name, PID: pid, By: s.By, Failed: err != nil})
	return err
}

// NotePhase notes a phase that ends now.
func (s *Session) NotePhase(start time.Duration, p timeline.Phase) {
	p.Start, p.Seconds = start.Seconds(), (s.now() - start).Seconds()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Phases.Add(p)
}

// NoteCriu notes that criu worked from the end of the last phase until now. It does so only if that
// phase belonged to one of criu's stages: otherwise the time since then was not criu's.
func (s *Session) NoteCriu() {
	if len(s.Phases) == 0 {
		return
	}
	last := s.Phases[len(s.Phases)-1]
	if slices.Contains([]string{criuutil.StagePreDump, criuutil.StagePostDump, criuutil.StagePreRestore, criuutil.StagePreResume}, last.By) {
		s.NotePhase(last.End(), timeline.Phase{Name: "criu", By: timeline.ByCriu})
	}
}

// now is the time since the session was created.
func (s *Session) now() time.Duration { return timeline.SinceBoot() - s.CreatedClock }

// Timeline returns what is known about where the session's time went.
func (s *Session) Timeline() timeline.Trace {
	about := map[string]string{"session": s.Name(), "kind": string(s.Kind), "created": s.Created.Format(time.RFC3339Nano)}
	if s.Outcome != "" {
		about["outcome"] = string(s.Outcome)
	}
	by := timeline.ByCriu
	if s.Kind == KindSuspend {
		by = "cucriu"
	}
	rows := []timeline.Row{{PID: s.Criu.PID, Name: string(s.Kind) + " by " + by}}
	for _, member := range s.Members {
		rows = append(rows, timeline.Row{PID: member.PID, Name: member.Name})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return timeline.New(about, rows, s.Phases)
}

// WriteTimeline writes the timeline into the session's directory. No other step depends on it.
func (s *Session) WriteTimeline() error {
	return s.Timeline().Write(filepath.Join(s.dir, timelineFile))
}
