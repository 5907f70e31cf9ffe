package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"

	"cucriu/internal/jobs/life"
	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/records"
	"cucriu/internal/kit/twice"
)

// A job that moves to another host has a record in its directory on both hosts. It says where the
// job goes on, after any crash. Whoever changes it has its lock.

const (
	moveName     = "move.json"
	moveLockName = "move.lock"
	arrivalsName = "arrivals.json" // the moves by which the job has come here
)

// MoveState says how far a move is.
type MoveState string

// The states of a move. Left is final until a person or the destination gives the job back.
const (
	MoveNone    MoveState = ""
	MoveLeaving MoveState = "leaving" // source: undecided, and the job stays here if its program is gone
	MoveStays   MoveState = "stays"   // source: the job stays here, and the destination is yet to be told
	MoveLeft    MoveState = "left"    // the job belongs to the other host: the commit point

	MoveArriving MoveState = "arriving" // destination: not complete
	MovePromised MoveState = "promised" // destination: complete, and the source decides
	MoveArrived  MoveState = "arrived"  // destination: the job belongs here
)

// Move is the record of a move.
type Move struct {
	ID    string    `json:"id"`
	State MoveState `json:"state"`
	Peer  string    `json:"peer"` // the other host
	At    time.Time `json:"at"`
	// PeerKnows says of a job that has left that the other host knows of it.
	PeerKnows bool `json:"known,omitempty"`
	// Returned says that the job could not be resumed here, and was given back.
	Returned string `json:"returned,omitempty"`

	// How the source reaches the destination.
	RSH    []string `json:"rsh,omitempty"`
	Remote string   `json:"remote,omitempty"`
	// How the destination starts the job; empty is the command of the source.
	Start string `json:"start,omitempty"`
	// Made says that the directory was made for the job.
	Made bool `json:"made,omitempty"`
	// Events is how long the log of events was when the job arrived.
	Events int64 `json:"events,omitempty"`
	// Taken says that a person has let the job run here, whatever the source has.
	Taken bool `json:"taken,omitempty"`
	// Before is the record that a destination had from an earlier move.
	Before *Move `json:"before,omitempty"`
}

var moveKind = records.Kind[Move]{
	Name: moveName, What: "the record of the move", Remedy: "restore it from a backup; or see with cucriu jobs list on both hosts where the job runs", Version: 1,
	Check: func(m *Move) error {
		if m.State == MoveNone || m.ID == "" {
			return errors.New("it names no move")
		}
		return nil
	},
}

// ReadMove reads the record of the last move of a job. Its state is [MoveNone] if there is none.
func ReadMove(dir string) (m Move, err error) {
	if m, err = moveKind.ReadOr(dir, Move{}); err != nil {
		return m, fmt.Errorf("cannot tell where the job of %s runs: %w", dir, err)
	}
	return m, nil
}

// Write writes the record of a move. It is on disk afterwards.
func (m Move) Write(dir string) error {
	m.At = time.Now().UTC()
	if err := moveKind.Write(dir, m); err != nil {
		return fmt.Errorf("record of the move: %w", err)
	}
	return nil
}

// RemoveMove removes the record of a move that is over.
func RemoveMove(dir string) error { return moveKind.Remove(dir) }

// maxArrivals is how many moves by which a job has come to a host are remembered.
const maxArrivals = 100

// NoteArrival remembers the ID of a move by which the job has come here, before its record is replaced:
// the source may not have heard yet that the job runs.
func NoteArrival(dir, id string) error {
	all, err := arrivals(dir)
	if err != nil || slices.Contains(all, id) {
		return err
	}
	all = append(all, id)
	return arrivalsKind.Write(dir, all[max(0, len(all)-maxArrivals):])
}

// hasArrived reports whether the job has come here by a move, whose record was replaced since.
func hasArrived(dir, id string) (bool, error) {
	all, err := arrivals(dir)
	return slices.Contains(all, id), err
}

var arrivalsKind = records.Kind[[]string]{Name: arrivalsName, What: "list of moves"}

func arrivals(dir string) (ids []string, err error) {
	if ids, err = arrivalsKind.ReadOr(dir, nil); err != nil {
		return nil, fmt.Errorf("cannot tell how the job of %s came here: %w", dir, err)
	}
	return ids, nil
}

// MoveLock is the right to change the record of a move.
type MoveLock struct{ lock *flock.Flock }

// ErrMoving says that another program is at work on the move of a job.
var ErrMoving = errors.New("another program is working on the move of this job")

// LockMove takes the lock of the record. It waits for it until ctx ends.
func LockMove(ctx context.Context, dir string) (*MoveLock, error) {
	lock := flock.New(filepath.Join(dir, moveLockName), flock.SetFlag(os.O_CREATE|os.O_RDWR))
	for {
		locked, err := lock.TryLock()
		if locked {
			return &MoveLock{lock}, nil
		}
		if err != nil {
			return nil, fmt.Errorf("lock of the move: %w", errors.Join(err, lock.Close()))
		}
		if wait(ctx, moveLook) != nil {
			return nil, errors.Join(ErrMoving, lock.Close())
		}
	}
}

// TryLockMove takes the lock of the record, or fails with [ErrMoving].
func TryLockMove(dir string) (*MoveLock, error) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return LockMove(ctx, dir)
}

// Free gives the lock back.
func (l *MoveLock) Free() error { return l.lock.Close() }

// moveLook is how often a file is looked at that another program changes.
const moveLook = 100 * time.Millisecond

// elsewhere says why a job does not run here.
func (m Move) elsewhere(dir string) string {
	switch {
	case m.State == MoveLeft && m.Returned != "":
		return fmt.Sprintf("the job of %s was returned to %s on %s, because it could not be resumed here: %s", dir, proc.Printable(m.Peer), m.At.Local().Format(time.DateTime), proc.Printable(m.Returned))
	case m.State == MoveLeft:
		text := fmt.Sprintf("the job of %s has moved to %s on %s, and runs there now", dir, proc.Printable(m.Peer), m.At.Local().Format(time.DateTime))
		if !m.PeerKnows {
			text += "; that host may not know it yet: run cucriu recover here"
		}
		return text + fmt.Sprintf("; if it can never run there again, cucriu recover --take %s lets it run here", m.ID)
	case m.State == MoveArriving:
		return fmt.Sprintf("the job of %s has not fully arrived from %s: it keeps running there", dir, proc.Printable(m.Peer))
	case m.State == MovePromised:
		return fmt.Sprintf("the job of %s is complete here, but %s decides whether it will run here: run cucriu recover there; or, if that host cannot be reached, here: cucriu recover --take %s (if it has reported that the job left) or --drop %[3]s (if the job keeps running there)", dir, proc.Printable(m.Peer), m.ID)
	}
	return ""
}

// ElsewhereError says that a job belongs to another host, or may.
type ElsewhereError struct {
	Dir  string
	Move Move
}

func (e *ElsewhereError) Error() string { return e.Move.elsewhere(e.Dir) }

// Refused returns true: nothing was touched.
func (e *ElsewhereError) Refused() bool { return true }

// flagsName is the file that says with which options a job was run last.
const flagsName = "flags.json"

var flagsKind = records.Kind[[]string]{Name: flagsName}

// noteFlags keeps the options of the supervisor for the one of the host to which the job may move.
func noteFlags(s *core) {
	if err := flagsKind.Write(s.Dir, append([]string{}, s.Flags...)); err != nil {
		s.say(fmt.Sprintf("the options could not be saved for a host to which the job may move: %v", err))
	}
}

// Flags returns the options with which a job was run last, without the directory. Without them, a job of a
// user could be started as root's.
func Flags(dir string) (flags []string, err error) {
	if flags, err = flagsKind.Read(dir); err != nil {
		return nil, fault.Because(err, fmt.Sprintf("the options of the job are not known: %v", err), "cucriu run with the command and all its options writes them again")
	}
	return flags, nil
}

// seen is what the record says of the job of a directory.
func (m Move) seen(dir string) []twice.Fact {
	switch m.State {
	case MoveLeft:
		return []twice.Fact{{Seen: twice.Left, Of: twice.Long(dir)}}
	case MoveArriving, MovePromised:
		return []twice.Fact{{Seen: twice.Undecided, Of: twice.Long(dir)}}
	}
	return nil
}

// hasLeft reports whether the job belongs to another host. It fails if it may.
func (s *lease) hasLeft() (bool, error) {
	m, err := ReadMove(s.Dir)
	if err != nil || twice.May(twice.Start{As: twice.Long(s.Dir)}, m.seen(s.Dir)...) == nil {
		return false, err
	}
	if m.State != MoveLeft {
		return false, &ElsewhereError{s.Dir, m}
	}
	s.say(m.elsewhere(s.Dir))
	_ = NoteLocal(s.hook.Config.RunDir, s.Dir, StateMoved) // so that cucriu recover finds it
	return true, nil
}

// lookAtMove reads the record of the move. While the program that moves the job lives, a job that
// has left may yet be given back. If it was killed before it has decided, the job stays here.
func (s *core) lookAtMove(ctx context.Context) (Move, error) {
	lock, err := TryLockMove(s.Dir)
	moves := errors.Is(err, ErrMoving)
	if err != nil && !moves {
		return Move{}, err
	}
	if !moves {
		defer func() { _ = lock.Free() }()
	}
	m, err := ReadMove(s.Dir)
	switch {
	case err != nil:
		return m, err
	case moves && m.State == MoveLeft:
		m.State = MoveLeaving
	case !moves && m.State == MoveLeaving:
		m.State = MoveStays
		if err := failpoint.Hit(ctx, "jobs.stays", 0); err != nil {
			return m, err
		}
		if err := m.Write(s.Dir); err != nil {
			return m, err
		}
		s.say(fmt.Sprintf("the move to %s was interrupted: %s stays here; cucriu recover notifies that host", m.Peer, s.record.Name))
	}
	return m, nil
}

// findMove finds where the job runs.
func (s *core) findMove(ctx context.Context, e *event) (err error) {
	e.Kind = life.MoveStays
	switch e.move, err = s.lookAtMove(ctx); e.move.State {
	case MoveLeft:
		e.Kind = life.MoveLeft
	case MoveLeaving:
		e.Kind = life.MoveOpen
	}
	return err
}
