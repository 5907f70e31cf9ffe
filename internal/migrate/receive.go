package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/journal"
	"cucriu/internal/migrate/commit"
	"cucriu/internal/migrate/prepare"
	"cucriu/internal/migrate/wire"
	"cucriu/internal/timeline"
)

// ReceiveOptions say how a destination receives a job.
type ReceiveOptions struct {
	Criu  string   // the criu to restore with; empty for the system's
	Stage string   // a directory for the image, in memory by default
	Bind  []string // the addresses to listen on for data; none means all
	Ports string   // the ports to listen on, such as 7000-7010; empty means any
}

// destination is the destination's side of one connection with a source.
type destination struct {
	*wire.Control
	hook      *hooks.Hook
	options   ReceiveOptions
	peer      hello
	identity  *wire.Identity
	stage     *stage
	job       *prepare.Job
	judgement *prepare.Judgement // of the job
	copies    prepare.Copy       // which files come with it
	made      madeRecord
	last      int    // the number of the round that is being received
	probes    int    // rounds of any kind, so far
	probing   string // the directory of a round that is only a probe; empty if there is none
	receiver  *wire.Receiver
	root      *os.Root // of the round's directory
	// restored gets the result of the restore that is under way.
	restored  chan error
	restoring bool
	// clearing removes what is not needed any more, which takes seconds for many GiB.
	clearing sync.WaitGroup
	giveUp   context.CancelCauseFunc
	pid      int // of the restored root
	sockets  []journal.Socket
}

// Receive is the destination's program. It talks with the source over in and out, until the
// source has what it wanted, or is lost.
func Receive(ctx context.Context, hook *hooks.Hook, in io.Reader, out io.Writer, o ReceiveOptions) error {
	if o.Stage == "" {
		o.Stage = defaultStage
	}
	if err := checkStage(o.Stage); err != nil {
		return err
	}
	d := &destination{Control: wire.NewControl(in, out), hook: hook.Filled(), options: o}
	defer d.close()
	if err := d.greet(ctx); err != nil {
		return err
	}
	d.restored = make(chan error, 1)
	messages := make(chan wire.Message)
	lost := make(chan error, 1)
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
	for {
		var err error
		var asked string
		select {
		case m := <-messages:
			asked, err = m.Kind, d.handle(ctx, m)
		case restoreErr := <-d.restored:
			err = d.onRestored(restoreErr)
		case err := <-lost:
			return d.onLost(err)
		case <-ctx.Done():
			d.stopRestore(context.Cause(ctx))
			_ = d.fail("", context.Cause(ctx))
			return errors.Join(context.Cause(ctx), d.on(commit.Failed))
		}
		if err != nil && d.fail(asked, err) != nil {
			return d.onLost(err)
		}
	}
}

func (d *destination) greet(ctx context.Context) (err error) {
	m, err := d.Control.Receive(ctx)
	if err != nil {
		return err
	}
	if m.Kind != sayHello {
		return fmt.Errorf("the source says %.40q where %q was expected", m.Kind, sayHello)
	}
	if err := m.Decode(&d.peer); err != nil {
		return err
	}
	if err := checkID(d.peer.ID); err != nil {
		return err
	}
	d.peer.Host = printable(d.peer.Host, 255)
	d.made.path = filepath.Join(recordsDir(d.hook.Config.RunDir), d.peer.ID+madeSuffix)
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

// fail tells the source that what it asked for has failed here.
func (d *destination) fail(asked string, err error) error {
	return d.Send(sayFailed, failure{Error: err.Error(), Refused: preflight.Refused(err), Asked: asked})
}

// handle does what the source asks for. Its error is told to the source.
func (d *destination) handle(ctx context.Context, m wire.Message) error {
	switch m.Kind {
	case sayPrepare:
		return d.prepare(ctx, m)
	case sayLater:
		return d.later(ctx, m)
	case sayClock:
		return d.Send(sayClock, clockMessage{timeline.SinceBoot()})
	case sayRound:
		return d.listen(ctx, m)
	case sayRestore:
		return d.restore(ctx, m)
	case sayCommit, sayAbort:
		return d.settle(m.Kind)
	case saySettle:
		var s settleMessage
		if err := m.Decode(&s); err != nil {
			return err
		}
		return d.settle(s.Decision)
	}
	return fmt.Errorf("%.40q is nothing that a destination does", m.Kind)
}

func (d *destination) prepare(ctx context.Context, m wire.Message) error {
	var asked prepareMessage
	if err := m.Decode(&asked); err != nil {
		return err
	}
	if asked.Job == nil {
		return errors.New("the source has described no job")
	}
	if err := asked.Job.Validate(); err != nil {
		return preflight.AsRefusal(err)
	}
	if own := hostMark(d.hook.Config.RunDir); own != "" && own == asked.HostMark {
		return preflight.AsRefusal(errors.New("this is the host on which the job runs"))
	}
	d.removeMade() // of others, who were killed
	if err := preflight.CheckForce(asked.Force); err != nil {
		return preflight.AsRefusal(err)
	}
	d.hook.Force = asked.Force
	judgement, err := prepare.Judge(ctx, d.hook, asked.Job, prepare.Room{Dir: d.options.Stage, Criu: d.options.Criu, TCP: asked.TCP, Copy: asked.Copy, Ahead: asked.Ahead})
	if err != nil {
		return preflight.AsRefusal(err)
	}
	d.job, d.judgement, d.copies = asked.Job, judgement, asked.Copy
	if len(d.job.Map) > 0 {
		d.hook.Config.GPUs.Map = d.job.Map
	}
	if err := d.Send(sayJudged, judgement); err != nil {
		return err
	}
	return reach(ctx, "receive.judged")
}

// later judges again, with what the job has come to use meanwhile.
func (d *destination) later(ctx context.Context, m wire.Message) error {
	var asked laterMessage
	if err := m.Decode(&asked); err != nil {
		return err
	}
	if d.job == nil || asked.Job == nil || d.giveUp != nil {
		return errors.New("there is no job that could be described again")
	}
	judgement, err := prepare.JudgeLater(ctx, d.hook, asked.Job, d.copies)
	if err != nil {
		return err
	}
	d.job, d.judgement = asked.Job, judgement
	if err := reach(ctx, "receive.later"); err != nil {
		return err
	}
	return d.Send(sayJudged, judgement)
}

func (d *destination) close() {
	if !d.restoring { // else files are still being made; the next receive or recover removes them
		d.made.close()
		d.removeMade()
	}
	d.Close()
	if d.receiver != nil {
		_ = d.receiver.Finish() // it is of no use any more
	}
	if d.root != nil {
		d.root.Close()
	}
	if d.stage != nil {
		_ = d.stage.remove()
	}
	d.clearing.Wait()
}
