package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/preflight"
	"cucriu/hooks/timeline"
	"cucriu/internal/jobs"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/quote"
	"cucriu/internal/migrate/commit"
	"cucriu/internal/migrate/prepare"
	"cucriu/internal/migrate/wire"
)

// ReceiveOptions say how a destination receives a job.
type ReceiveOptions struct {
	Criu  string   // the criu to restore with; empty for the system's
	Stage string   // a directory for the image, in memory by default
	Bind  []string // the addresses to listen on for data; none means all
	Ports string   // the ports to listen on, such as 7000-7010; empty means any
}

// arrival is what the commit protocol needs of a job on its way to this host.
type arrival interface {
	// state is what is written down, and whether this migration is known here.
	state() (state commit.DestinationState, known bool, err error)
	// decide writes the next state down, unless it is, and then lets the copy here run or ends it. Again,
	// it does what an earlier call has not finished. A job that cannot be resumed is a
	// [*jobs.ReturnedError].
	decide(ctx context.Context, next commit.DestinationState) error
}

// answerEvent has an arrival answer an event, and returns what the source is to be told. There is
// nothing if the migration is not known here, or has no copy any more.
func answerEvent(ctx context.Context, a arrival, e commit.Event) (do []commit.Action, err error) {
	for {
		before, known, err := a.state()
		if err != nil {
			return nil, err
		}
		if (e == commit.Commit || e == commit.Abort) && !known || e == commit.Commit && before == commit.Dropped { // by a person, or with a reboot
			return nil, nil
		}
		next, do, err := before.HandleEvent(e)
		if err == nil && len(do) > 0 {
			err = a.decide(ctx, next)
		}
		if errors.Is(err, checkpoint.ErrDecided) {
			if now, _, stateErr := a.state(); stateErr == nil && now != before {
				continue // by the watcher, or over another connection
			}
		}
		if err == nil {
			err = reach(ctx, "receive."+string(next))
		}
		if !known {
			do = nil // the source was told of nothing that could end
		}
		return do, err
	}
}

// arriving is an arrival whose source is connected.
type arriving interface {
	arrival
	// handle does what the source asks for. Its error is told to the source.
	handle(ctx context.Context, m wire.Message) error
	// abort is called before the source's decision to keep the job is handled, stop when the source is
	// lost or this program is to end.
	abort() error
	stop(cause error)
	// running is what the source is told of a job that runs.
	running() running
	// inDoubt is the error about a job that was promised to a source that is lost.
	inDoubt() error
	close()
}

// destination is the destination's side of one connection with a source.
type destination struct {
	*wire.Control
	hook     *hooks.Hook
	options  ReceiveOptions
	peer     hello
	identity *wire.Identity
	job      arriving // nil before the source has said what comes
	restored chan error
	last     int // the number of the round that is being received
	receiver *wire.Receiver
	root     *os.Root // of the round's directory
}

// Receive is the destination's program. It talks with the source over in and out, until the
// source has what it wanted, or is lost.
func Receive(ctx context.Context, hook *hooks.Hook, in io.Reader, out io.Writer, o ReceiveOptions) error {
	d := &destination{Control: wire.NewControl(in, out), hook: hook.Filled(), options: o, restored: make(chan error, 1)}
	defer d.close()
	if err := d.greet(ctx); err != nil {
		return err
	}
	messages, lost := make(chan wire.Message), make(chan error, 1)
	go func() {
		for {
			m, err := d.Receive(context.WithoutCancel(ctx))
			if err != nil {
				lost <- err
				return
			}
			messages <- m
		}
	}()
	// What is not promised is given up with the connection.
	working, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	go func() {
		<-d.Done()
		giveUp(errors.New("the connection to the source is lost"))
	}()
	for {
		var err error
		var asked string
		select {
		case m := <-messages:
			asked, err = m.Kind, d.handle(working, m)
		case restoreErr := <-d.restored:
			asked, err = sayRestore, d.job.(*treeArrival).onRestored(restoreErr)
		case err := <-lost:
			return d.onLost(err)
		case <-ctx.Done():
			err := context.Cause(ctx)
			if d.job != nil {
				d.job.stop(err)
			}
			_ = d.fail("", err)
			return errors.Join(err, d.handleEvent(commit.Failed))
		}
		if err == nil {
			continue
		}
		failure := errors.Join(d.fail(asked, err), d.handleEvent(commit.Failed))
		decided := asked == sayCommit || asked == sayAbort || asked == saySettle
		if failure != nil || decided { // the source waits for an answer: it asks again over another connection
			return d.onLost(err)
		}
	}
}

func (d *destination) greet(ctx context.Context) (err error) {
	m, err := d.Receive(ctx)
	if errors.Is(err, wire.ErrClosed) {
		return fmt.Errorf("%w before the source said anything: cucriu receive is started by cucriu migrate; to try the connection: ssh HOST cucriu --version", err)
	}
	if err != nil {
		return err
	}
	if m.Kind != sayHello {
		return fmt.Errorf("the source sent %.40q where %q was expected", m.Kind, sayHello)
	}
	if err := m.Decode(&d.peer); err != nil {
		return err
	}
	if err := checkID(d.peer.ID); err != nil {
		return err
	}
	d.peer.Host = quote.Foreign(d.peer.Host)
	if d.identity, err = wire.NewIdentity(); err != nil {
		return err
	}
	ours := greeting(d.peer.ID, d.identity.Fingerprint())
	if err := d.Send(sayHello, ours); err != nil {
		return err
	}
	if err := ours.requireSameProtocol(d.peer); err != nil {
		return err
	}
	return reach(ctx, "receive.greeted")
}

// refuseShortLived refuses a job that would end with this program: a pid namespace ends with its first process, and that is
// this one, or only waits for this one.
func refuseShortLived() error {
	self := os.Getpid()
	line := []int{self}
	for pid := self; pid > 1; line = append(line, pid) {
		status, err := proc.ReadStatus(pid)
		if err != nil {
			return nil // /proc shows another namespace
		}
		pid = status.PPID
	}
	first, firstErr := unix.Getsid(1)
	ours, err := unix.Getsid(0)
	all, allErr := proc.All()
	others := slices.ContainsFunc(all, func(pid int) bool { return !slices.Contains(line, pid) })
	if self != 1 && (errors.Join(firstErr, err, allErr) != nil || first != ours || others) {
		return nil
	}
	return fault.New("the job would end with cucriu receive: there is nothing else in its pid namespace there",
		"reach a namespace that stays: by ssh, nsenter, or docker or kubectl exec into a container that runs")
}

// fail tells the source that what it asked for has failed here.
func (d *destination) fail(asked string, err error) error {
	return d.Send(sayFailed, failure{Error: err.Error(), Refused: preflight.Refused(err), Asked: asked})
}

// handle does what the source asks for. Its error is told to the source.
func (d *destination) handle(ctx context.Context, m wire.Message) error {
	switch m.Kind {
	case sayClock:
		return d.Send(sayClock, clockMessage{timeline.SinceBoot()})
	case sayPrepare, sayJob:
		if d.job != nil {
			return errors.New("a job was already described")
		}
		if err := refuseShortLived(); err != nil {
			return preflight.AsRefusal(err)
		}
		if m.Kind == sayPrepare {
			d.job = newTreeArrival(d)
		} else {
			d.job = newJobArrival(d)
		}
	case saySettle:
		var s settleMessage
		if err := m.Decode(&s); err != nil {
			return err
		}
		d.job = newTreeArrival(d)
		if s.Dir != "" {
			job := newJobArrival(d)
			d.job = job
			if err := job.claim(ctx, s.Dir); err != nil {
				return err
			}
		}
		m.Kind = s.Decision
	}
	switch {
	case m.Kind == sayCommit || m.Kind == sayAbort:
		return d.settle(commit.Event(m.Kind))
	case d.job == nil:
		return errNoJob
	}
	return d.job.handle(ctx, m)
}

// settle hears what the source has decided, and answers.
func (d *destination) settle(e commit.Event) error {
	if d.job == nil {
		return d.Send(sayUnknown, nil)
	}
	if e == commit.Abort {
		if err := d.job.abort(); err != nil {
			return err
		}
	}
	if err := reach(context.Background(), "receive.heard"); err != nil {
		return err
	}
	return d.handleEvent(e)
}

// handleEvent answers an event, and tells the source, if it listens.
func (d *destination) handleEvent(e commit.Event) error {
	if d.job == nil {
		return nil
	}
	ctx := context.Background()
	do, err := answerEvent(ctx, d.job, e)
	heard := e == commit.Commit || e == commit.Abort
	var back *jobs.ReturnedError
	switch {
	case errors.As(err, &back) && e == commit.ControlLost:
		return nil // the source asks again
	case errors.As(err, &back):
		return d.Send(sayReturned, jobReturned{back.Why})
	case err != nil:
		return err
	case len(do) == 0 && heard:
		return d.Send(sayUnknown, nil)
	}
	for _, action := range do {
		switch action {
		case commit.SayReady:
			err = d.Send(sayReady, nil)
		case commit.SayRunning:
			err = d.Send(sayRunning, d.job.running())
		case commit.SayEnded:
			err = d.Send(sayEnded, nil)
		default:
			continue
		}
		err = errors.Join(err, reach(ctx, "receive."+string(action)))
	}
	return err
}

// onLost ends what is not promised: the source has its own copy.
func (d *destination) onLost(cause error) error {
	if d.job == nil {
		return nil // a source that has what it wanted just hangs up
	}
	d.job.stop(cause)
	if _, known, err := d.job.state(); err == nil && !known {
		return nil
	}
	if err := d.handleEvent(commit.ControlLost); err != nil {
		return err
	}
	if state, known, err := d.job.state(); err == nil && known && state == commit.Promised {
		return fmt.Errorf("%w: the connection to %s is lost (%w): %w", hooks.ErrNotBack, d.peer.Host, cause, d.job.inDoubt())
	}
	return nil
}

func (d *destination) close() {
	d.Close()
	if d.receiver != nil {
		_ = d.receiver.Finish() // it is of no use any more
	}
	if d.root != nil {
		d.root.Close()
	}
	if d.job != nil {
		d.job.close()
	}
}

const (
	maxRounds = 16
	maxFiles  = 1 << 16
)

// beginRound makes a directory, and listens for what the pinned source sends into it.
func (d *destination) beginRound(ctx context.Context, dir string) (err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if d.root, err = os.OpenRoot(dir); err != nil {
		return err
	}
	room, err := prepare.Free(dir)
	if err != nil {
		return err
	}
	config, err := d.identity.ServerConfig(d.peer.Fingerprint)
	if err != nil {
		return err
	}
	d.receiver, err = wire.Receive(ctx, wire.ListenOptions{Bind: d.options.Bind, Ports: d.options.Ports, Config: config, Log: d.hook.Log},
		wire.ReceiveOptions{Dir: d.root, MaxBytes: room, MaxFiles: maxFiles})
	if err != nil {
		return err
	}
	return d.Send(sayListening, listening{Addresses: d.receiver.Addresses()})
}

// endRound ends the receiving. It is an error if not everything has come.
func (d *destination) endRound() error {
	if d.receiver == nil {
		return errors.New("nothing was sent")
	}
	if err := errors.Join(d.receiver.Finish(), d.root.Close()); err != nil {
		return err
	}
	d.receiver, d.root = nil, nil
	return nil
}
