package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/hooks"
	"cucriu/hooks/migrate/commit"
	"cucriu/hooks/migrate/prepare"
	"cucriu/hooks/migrate/wire"
	"cucriu/hooks/preflight"
	"cucriu/hooks/timeline"
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
	listener  *wire.Listener
	stage     *stage
	job       *prepare.Job
	judgement *prepare.Judgement // of the job
	made      []string           // files and directories, for the job
	last      int                // the number of the round that is being received
	probes    int                // rounds of any kind, so far
	probing   string             // the directory of a round that is only a probe; empty if there is none
	receiver  *wire.Receiver
	// restored gets the result of the restore that is under way.
	restored  chan error
	restoring bool
	giveUp    context.CancelCauseFunc
	pid       int // of the restored root
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
	if d.identity, err = wire.NewIdentity(); err != nil {
		return err
	}
	ours := greeting(d.peer.ID, d.identity.Fingerprint())
	if err := d.Send(sayHello, ours); err != nil {
		return err
	}
	if _, err = wire.Negotiate(ours.Hello, d.peer.Hello); err != nil {
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
	judgement, err := prepare.Judge(ctx, d.hook, asked.Job, prepare.Room{Dir: d.options.Stage, Criu: d.options.Criu, TCP: asked.TCP, Copy: asked.Copy})
	if err != nil {
		return preflight.AsRefusal(err)
	}
	d.job, d.judgement = asked.Job, judgement
	if len(d.job.Map) > 0 {
		d.hook.Config.GPUs.Map = d.job.Map
	}
	if err := d.Send(sayJudged, judgement); err != nil {
		return err
	}
	return reach(ctx, "receive.judged")
}

// listen makes ready for the data of a round.
func (d *destination) listen(ctx context.Context, m wire.Message) error {
	var r round
	if err := m.Decode(&r); err != nil {
		return err
	}
	if d.probes++; d.job == nil || d.giveUp != nil || r.Number > maxRounds || d.probes > maxProbes || !r.Probe && r.Number != d.last+1 {
		return fmt.Errorf("round %d cannot begin now", r.Number)
	}
	if d.receiver != nil {
		if err := d.receiver.Finish(); err != nil {
			return fmt.Errorf("round %d: %w", d.last, err)
		}
	}
	if err := errors.Join(d.openStage(ctx), d.dropProbe()); err != nil {
		return err
	}
	dir := d.stage.round(r.Number)
	if r.Probe {
		d.probing = fmt.Sprintf("probe-%d", d.probes)
		dir = filepath.Join(d.stage.dir, d.probing)
	} else {
		d.last = r.Number
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	room, err := free(dir)
	if err != nil {
		return err
	}
	receiver := wire.NewReceiver(wire.ReceiveOptions{Dir: root, MaxBytes: room, MaxFiles: maxFiles})
	d.receiver = receiver
	go func() { // for the connections of this round
		over, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			_ = receiver.Wait(over)
			cancel()
		}()
		for {
			conn, err := d.listener.Accept(over)
			if err != nil {
				return
			}
			go func() {
				if err := receiver.Serve(ctx, conn); err != nil {
					d.hook.Log.Debug("a data connection has ended", "error", err)
				}
			}()
		}
	}()
	if err := d.Send(sayListening, listening{Addresses: d.listener.Addresses()}); err != nil {
		return err
	}
	return reach(ctx, "receive.listening")
}

const (
	maxRounds = 16
	maxProbes = 64
	maxFiles  = 1 << 16
)

// openStage makes the directory for the images, and listens for the pinned source.
func (d *destination) openStage(ctx context.Context) (err error) {
	if d.stage != nil {
		return nil
	}
	config, err := d.identity.ServerConfig(d.peer.Fingerprint)
	if err != nil {
		return err
	}
	d.listener, err = wire.Listen(ctx, wire.ListenOptions{Bind: d.options.Bind, Ports: d.options.Ports, Config: config, Log: d.hook.Log})
	if err != nil {
		return err
	}
	d.stage, err = newStage(d.hook.Config.RunDir, d.options.Stage, d.peer.ID, "destination")
	return err
}

func free(dir string) (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, fmt.Errorf("%s: %w", dir, err)
	}
	return int64(fs.Bavail) * fs.Bsize, nil
}

func (d *destination) close() {
	d.unmake()
	d.Close()
	if d.listener != nil {
		d.listener.Close()
	}
	if d.stage != nil {
		_ = d.stage.remove()
	}
}

// linkEarlier gives the last round the files that it has in common with earlier ones.
func (d *destination) linkEarlier(links []link) error {
	if len(links) > maxFiles {
		return errors.New("too many files of earlier rounds are named")
	}
	root, err := os.OpenRoot(d.stage.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, l := range links {
		if l.Round < 1 || l.Round >= d.last || l.Name != filepath.Base(l.Name) || strings.HasPrefix(l.Name, ".") {
			return fmt.Errorf("%.80q of round %d is no file of an earlier round", l.Name, l.Round)
		}
		from := filepath.Join(filepath.Base(d.stage.round(l.Round)), l.Name)
		if err := root.Link(from, filepath.Join(filepath.Base(d.stage.round(d.last)), l.Name)); err != nil {
			return err
		}
	}
	return nil
}
