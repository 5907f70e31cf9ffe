package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/failpoint"
	"cucriu/internal/jobs"
	"cucriu/internal/jobs/store"
	"cucriu/internal/migrate/commit"
	"cucriu/internal/migrate/wire"
)

// jobDestination is the destination's side of one connection about a long job.
type jobDestination struct {
	*destination
	job   jobMessage
	lock  *jobs.MoveLock // held from the first change in the job's directory on
	store *store.Store   // open until the promise
	dir   string         // of what arrives
}

// ReceiveJob is the destination's program for a long job.
func ReceiveJob(ctx context.Context, hook *hooks.Hook, in io.Reader, out io.Writer, o ReceiveOptions) error {
	d := &jobDestination{destination: &destination{Control: wire.NewControl(in, out), hook: hook.Filled(), options: o}}
	defer d.close()
	if err := d.greet(ctx); err != nil {
		return err
	}
	// What is not promised is given up with the connection.
	working, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	go func() {
		<-d.Done()
		giveUp(errors.New("the connection to the source is lost"))
	}()
	for {
		m, err := d.Control.Receive(ctx)
		if err != nil {
			return d.lost(err)
		}
		if cause := d.handle(working, m); cause != nil {
			failure := d.fail(m.Kind, cause)
			if err := d.on(commit.Failed); err != nil || failure != nil {
				return errors.Join(err, d.lost(failure))
			}
			if m.Kind == sayCommit || m.Kind == sayAbort || m.Kind == saySettleJob {
				return d.lost(cause) // the source waits for an answer: it asks again over another connection
			}
		}
	}
}

func (d *jobDestination) handle(ctx context.Context, m wire.Message) error {
	switch m.Kind {
	case sayJob:
		return d.welcome(m)
	case sayJobRound:
		return d.listen(ctx, m)
	case sayJobTake:
		return d.take(ctx)
	case sayPromise:
		return d.promise(ctx, m)
	case sayCommit:
		return d.on(commit.Commit)
	case sayAbort:
		return d.on(commit.Abort)
	case saySettleJob:
		return d.settle(ctx, m)
	}
	return fmt.Errorf("%.40q is nothing that a destination does", m.Kind)
}

// arrivingName is the folder in the job's directory for what comes.
const arrivingName = ".arriving"

// open makes the job's directory this migration's.
func (d *jobDestination) open(ctx context.Context) (err error) {
	if d.store != nil {
		return nil
	}
	if d.job.Dir == "" || d.lock != nil {
		return errors.New("no job was announced")
	}
	_, missing := os.Lstat(d.job.Dir)
	opened, err := store.Open(d.job.Dir, store.OpenOptions{Log: d.hook.Log})
	if err != nil {
		return preflight.AsRefusal(err)
	}
	keep := false
	defer func() {
		if !keep {
			_ = opened.Close()
		}
	}()
	lock, err := jobs.TryLockMove(d.job.Dir)
	if err != nil {
		return preflight.AsRefusal(err)
	}
	before, err := jobs.ReadMove(d.job.Dir)
	if err == nil && before.State != jobs.MoveLeft && before.State != jobs.MoveArriving {
		err = isEmptyStore(d.job.Dir) // looked at again, now that nobody else can open the store
	}
	if err == nil {
		err = failpoint.Hit(ctx, "job.arriving", 0)
	}
	if err == nil {
		move := jobs.Move{ID: d.peer.ID, State: jobs.MoveArriving, Peer: d.peer.Host, Start: d.job.Start, Made: errors.Is(missing, os.ErrNotExist)}
		switch before.State {
		case jobs.MoveLeft:
			move.Before = &before
		case jobs.MoveArriving: // of a program that was killed
			move.Before, move.Made = before.Before, before.Made
		}
		err = move.Write(d.job.Dir)
	}
	if err != nil {
		return errors.Join(preflight.AsRefusal(err), lock.Free())
	}
	keep = true
	d.store, d.lock = opened, lock
	_ = jobs.NoteLocal(d.hook.Config.RunDir, d.job.Dir, jobs.StateArriving)
	d.dir = filepath.Join(d.job.Dir, arrivingName)
	if err := os.RemoveAll(d.dir); err != nil {
		return err
	}
	if _, err := d.store.RemoveLeftovers(); err != nil {
		return err
	}
	return os.Mkdir(d.dir, 0o700)
}

func (d *jobDestination) roundDir() string { return filepath.Join(d.dir, fmt.Sprint(d.last)) }

// listen makes ready for the data of a round.
func (d *jobDestination) listen(ctx context.Context, m wire.Message) error {
	var r round
	if err := m.Decode(&r); err != nil {
		return err
	}
	if err := d.open(ctx); err != nil {
		return err
	}
	if r.Number != d.last+1 || r.Number > maxRounds || d.receiver != nil {
		return fmt.Errorf("round %d cannot begin now", r.Number)
	}
	d.last = r.Number
	return d.beginRound(ctx, d.roundDir())
}

// lost ends what is not promised: the source has its own checkpoints.
func (d *jobDestination) lost(cause error) error {
	if d.lock == nil {
		return nil // a source that has what it wanted just hangs up
	}
	if err := d.on(commit.ControlLost); err != nil {
		return err
	}
	if m, err := jobs.ReadMove(d.job.Dir); err == nil && m.State == jobs.MovePromised && m.ID == d.peer.ID {
		return fmt.Errorf("%w: the connection to the source is lost (%w): %w", hooks.ErrNotBack, cause, &jobs.ElsewhereError{Dir: d.job.Dir, Move: m})
	}
	return nil
}

func (d *jobDestination) close() {
	d.destination.close()
	if d.store != nil {
		_ = d.store.Close()
	}
	if d.lock != nil {
		_ = d.lock.Free()
	}
}

// settlePatienceThere is how long another program at the destination may take to notice that its
// connection is lost.
const settlePatienceThere = time.Minute

// settle hears what the source has decided, over a new connection.
func (d *jobDestination) settle(ctx context.Context, m wire.Message) error {
	var s jobSettle
	if err := m.Decode(&s); err != nil {
		return err
	}
	d.job = jobMessage{Dir: s.Dir, Name: "job", Begun: time.Now()}
	if err := d.job.validate(); err != nil {
		return err
	}
	e := map[string]commit.Event{sayCommit: commit.Commit, sayAbort: commit.Abort}[s.Decision]
	if e == "" {
		return fmt.Errorf("%.40q is no decision", s.Decision)
	}
	if move, err := jobs.ReadMove(s.Dir); err != nil || move.State == jobs.MoveNone {
		return errors.Join(err, d.Send(sayUnknown, nil))
	}
	waiting, cancel := context.WithTimeout(ctx, settlePatienceThere)
	defer cancel()
	var err error
	if d.lock, err = jobs.LockMove(waiting, s.Dir); err != nil {
		return err
	}
	return d.on(e)
}
