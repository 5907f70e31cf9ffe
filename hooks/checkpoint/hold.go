package checkpoint

import (
	"context"
	"errors"
	"os"
	"time"

	"cucriu/hooks"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/core/watch"
	"cucriu/internal/kit/proc"
)

// Hold keeps a job held once criu is through, until [Decide]: a dumped one stopped, with its GPU state in the
// image; a restored one complete. It outlives the program that holds.
type Hold struct {
	ID   string // of what holds the job: a migration
	Peer string // where the other copy is, for messages
	// IfAbandoned is what happens if this program ends without a decision.
	IfAbandoned Decision
	// KeepsConnections says that the job that runs elsewhere has its TCP connections, with its address. No packet
	// reaches those of a dump here before the processes have ended, and those of a restore end without a word.
	KeepsConnections bool
}

// Decision says what is to become of a held job.
type Decision string

// The decisions.
const (
	RunHere = Decision(journal.RunHere) // the processes here run
	EndHere = Decision(journal.EndHere) // the processes here end: the job runs elsewhere, or not at all
)

// ErrDecided is wrapped by the error of a decision that comes too late: another has been made.
var ErrDecided = watch.ErrDecided

// Held is how a held job stands.
type Held struct {
	Status
	Decision Decision // empty until there is one
	// Promised says that only a decision ends the hold: see [Promise].
	Promised bool
	// Clock is when the session began, as time since boot.
	Clock time.Duration
}

// FindHeld returns how the job with this name of a hold stands. The error is [os.ErrNotExist] if there is none.
func FindHeld(hook *hooks.Hook, id string) (Held, error) {
	s, err := session.Of(hook).Held(id)
	if err != nil {
		return Held{}, err
	}
	return Held{
		Status: statusOf(s), Decision: Decision(s.Hold.Decision),
		Promised: s.Hold.IfAbandoned == journal.StayHeld, Clock: s.CreatedClock,
	}, nil
}

// Decide says what becomes of a held job, and does it. With the same decision it may be called again, and goes
// on with what is not finished. Its error wraps [ErrDecided] if it comes too late, [hooks.ErrNotBack] as that of
// [Recover] does, and is [os.ErrNotExist] if there is no hold of this name.
func Decide(ctx context.Context, hook *hooks.Hook, id string, decision Decision) error {
	return watch.Decide(ctx, session.Of(hook), id, journal.Decision(decision))
}

// Promise notes that the other side may count on a held job from now on: only a decision ends it, and not the
// end of the holder.
func Promise(ctx context.Context, hook *hooks.Hook, id string) error {
	return watch.Promise(ctx, session.Of(hook), id)
}

// NoteTold notes that the other side knows what was decided. Until then the session of a job that was ended
// here is kept.
func NoteTold(ctx context.Context, hook *hooks.Hook, id string) error {
	return watch.NoteTold(ctx, session.Of(hook), id)
}

// record is the hold as the journal has it: this program decides.
func (h *Hold) record() (*journal.Hold, error) {
	if h == nil {
		return nil, nil
	}
	self, err := proc.IdentOf(os.Getpid())
	return &journal.Hold{
		ID: h.ID, Peer: h.Peer, Holder: self,
		IfAbandoned: journal.Decision(h.IfAbandoned), KeepsConnections: h.KeepsConnections,
	}, err
}

// AtWork says of an error of [Recover] that somebody else is at work on a session, and whether that is more than
// a criu whose watcher has ended: should that fail, nobody brings its processes back.
func AtWork(err error) (atWork, watched bool) {
	atWork = errors.As(err, new(*watch.AtWorkError))
	return atWork, atWork && !errors.Is(err, watch.ErrUnwatched)
}

// Recover brings every orphaned session to a good end: one whose criu has ended, and on which neither hook nor
// watcher is at work. It waits for those that were killed. It returns the sessions that it worked on, and those
// on which somebody else is at work. The errors of those that are not finished wrap [hooks.ErrNotBack].
func Recover(ctx context.Context, hook *hooks.Hook) ([]Status, error) {
	recovered, err := watch.Recover(ctx, session.Of(hook))
	return statusesOf(recovered), err
}
