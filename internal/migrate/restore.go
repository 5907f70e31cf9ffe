package migrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"google.golang.org/protobuf/proto"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/internal/journal"
	"cucriu/internal/migrate/commit"
	"cucriu/internal/migrate/prepare"
	"cucriu/internal/migrate/wire"
	"cucriu/internal/proc"
)

// restore begins the restore of the last round. It goes on while messages are handled.
func (d *destination) restore(ctx context.Context, m wire.Message) error {
	var asked restoreMessage
	if err := m.Decode(&asked); err != nil {
		return err
	}
	if d.receiver == nil || d.giveUp != nil {
		return errors.New("nothing was received that could be restored")
	}
	if err := reach(ctx, "receive.asked"); err != nil {
		return err
	}
	if err := d.endRound(); err != nil {
		return err
	}
	if err := d.linkEarlier(asked.Links); err != nil {
		return err
	}
	self, err := proc.IdentOf(os.Getpid())
	if err != nil {
		return err
	}
	ctx, d.giveUp = context.WithCancelCause(ctx)
	hold := &journal.Hold{ID: d.peer.ID, Peer: d.peer.Host, Holder: self, IfAbandoned: journal.DecisionEnd, Sockets: asked.Sockets}
	d.sockets = asked.Sockets
	dir := d.stage.round(d.last)
	d.restoring = true
	go func() { d.restored <- d.restoreHeld(ctx, dir, hold, asked.TCP) }()
	return nil
}

func (d *destination) restoreHeld(ctx context.Context, dir string, hold *journal.Hold, tcp prepare.TCP) error {
	if err := d.putFiles(ctx, dir); err != nil {
		return err
	}
	if err := d.hook.ClaimSockets(d.peer.ID, d.sockets); err != nil {
		return err
	}
	noting := *d.hook
	noting.Progress = func(_ *journal.Record, step string) { _ = d.Send(sayProgress, progressMessage{step}) }
	result, err := checkpoint.Restore(ctx, &noting, dir, checkpoint.Options{
		Path: d.options.Criu, Hold: hold, Output: os.Stderr,
		RPC: &rpc.CriuOpts{
			LogLevel: proto.Int32(criuLogLevel),
			TcpClose: proto.Bool(tcp == prepare.TCPClose), TcpEstablished: proto.Bool(tcp == prepare.TCPKeep),
		},
	})
	d.pid = result.RootPID
	return errors.Join(err, reach(ctx, "receive.restored"))
}

var errGivenUp = errors.New("the source has given the migration up meanwhile")

// onRestored promises a copy that is complete to the source, or tells it that there is none.
func (d *destination) onRestored(err error) error {
	d.restoring = false
	d.giveUp(nil)
	if err == nil && isDropped(d.hook, d.peer.ID) {
		err = errGivenUp
	}
	if err == nil {
		err = d.made.promise()
	}
	if err == nil {
		err = d.on(commit.Complete)
	}
	if err == nil {
		stage := d.stage
		d.stage = nil
		d.clearing.Go(func() { _ = stage.remove() }) // the memory is needed; the job has its own now
		return nil
	}
	if sayErr := d.fail(sayRestore, err); sayErr != nil {
		return sayErr
	}
	return d.on(commit.Failed)
}

// stopRestore gives up a restore that is under way, and waits for its end. What it has restored is
// not promised, so it is ended with the decision.
func (d *destination) stopRestore(cause error) {
	if !d.restoring {
		return
	}
	d.giveUp(cause)
	select {
	case <-d.restored:
		d.restoring = false
	case <-time.After(giveUpPatience):
	}
}

// giveUpPatience is how long a restore that was given up may take to end.
const giveUpPatience = time.Minute

// settle hears what the source has decided, and answers.
func (d *destination) settle(decision string) error {
	var e commit.Event
	switch decision {
	case sayCommit:
		e = commit.Commit
	case sayAbort:
		e = commit.Abort
		if err := noteDropped(d.hook, d.peer.ID); err != nil {
			return err
		}
		d.stopRestore(errors.New("the source goes on with its own copy"))
	default:
		return fmt.Errorf("%.40q is no decision", decision)
	}
	if err := reach(context.Background(), "receive.heard"); err != nil {
		return err
	}
	return d.on(e)
}

// onLost ends what is not promised: the source has its own copy.
func (d *destination) onLost(err error) error {
	d.stopRestore(err)
	state, known, stateErr := destinationState(d.hook, d.peer.ID)
	if !known && stateErr == nil {
		return nil // nothing is here; a source that has what it wanted just hangs up
	}
	if err := errors.Join(stateErr, d.on(commit.ControlLost)); err != nil {
		return err
	}
	if state == commit.Promised {
		return fmt.Errorf("%w: the connection to %s is lost (%w): the job of migration %s stays stopped here until that host says what it has decided (cucriu recover there); "+
			"otherwise decide here with cucriu recover --take %[4]s (%[5]s) or --drop %[4]s (%[6]s)", hooks.ErrNotBack, d.peer.Host, err, d.peer.ID, commit.WhenToTake, commit.WhenToDrop)
	}
	return nil
}

// destinationState returns where the destination stands in the commit protocol, and whether it
// knows the migration.
func destinationState(hook *hooks.Hook, id string) (state commit.DestinationState, known bool, err error) {
	s, err := hook.Held(id)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return commit.Receiving, false, nil
	case err != nil:
		return "", false, err
	case s.Hold.Decision == journal.DecisionGo:
		return commit.Go, true, nil
	case s.Hold.Decision == journal.DecisionEnd || s.Outcome != "":
		return commit.Dropped, true, nil
	case s.Hold.IfAbandoned == journal.DecisionWait:
		return commit.Promised, true, nil
	}
	return commit.Receiving, true, nil
}

// on answers an event. What is durable and what is done about it are one step of the hooks.
func (d *destination) on(e commit.Event) error {
	ctx := context.Background()
	for {
		state, known, err := destinationState(d.hook, d.peer.ID)
		if err != nil {
			return err
		}
		if !known && (e == commit.Commit || e == commit.Abort) {
			return d.Send(sayUnknown, nil)
		}
		if e == commit.Commit && state == commit.Dropped { // by a person, or with a reboot
			return d.Send(sayUnknown, nil)
		}
		next, do, err := commit.Destination{State: state}.On(e)
		if err != nil {
			return err
		}
		switch next.State {
		case commit.Promised:
			if state == commit.Receiving {
				err = d.hook.Promise(ctx, d.peer.ID)
			}
		case commit.Go:
			_, err = d.hook.Decide(ctx, d.peer.ID, journal.DecisionGo)
		case commit.Dropped:
			if _, err = d.hook.Decide(ctx, d.peer.ID, journal.DecisionEnd); errors.Is(err, os.ErrNotExist) {
				err = nil
			}
			if err == nil { // its criu may have failed by itself
				d.hook.ReleaseSockets(d.peer.ID, d.sockets)
			}
		}
		if errors.Is(err, hooks.ErrDecided) {
			if again, _, stateErr := destinationState(d.hook, d.peer.ID); stateErr == nil && again != state {
				continue // by the watcher, or over another connection
			}
		}
		if err == nil {
			err = reach(ctx, "receive."+string(next.State))
		}
		if err != nil {
			return err
		}
		return d.answer(do)
	}
}

// answer tells the source what was done, if it listens.
func (d *destination) answer(do []commit.Action) (err error) {
	for _, action := range do {
		switch action {
		case commit.SayReady:
			err = d.Send(sayReady, nil)
		case commit.SayRunning:
			err = d.Send(sayRunning, running{PID: d.rootPID(), Steps: stepsOf(d.hook, d.peer.ID)})
		case commit.SayEnded:
			err = d.Send(sayEnded, nil)
		default:
			continue
		}
		err = errors.Join(err, reach(context.Background(), "receive."+string(action)))
	}
	return err
}

func (d *destination) rootPID() int {
	if s, err := d.hook.Held(d.peer.ID); err == nil && s.Root != nil {
		return s.Root.PID
	}
	return d.pid
}
