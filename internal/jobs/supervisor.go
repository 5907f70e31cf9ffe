package jobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/internal/jobs/job"
	"cucriu/internal/jobs/life"
	"cucriu/internal/jobs/relay"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/proc"
)

// supervisor takes care of one job. Its loop gives every event to [life.State.On], and executes the
// actions that it gets (actions.go).
type supervisor struct {
	*core
	starter      starter
	checkpointer checkpointer
	control      control

	life    life.State
	event   event                   // the one that is answered
	done    chan event              // of the action that takes time
	cutOff  context.CancelCauseFunc // ends that action
	giveUp  context.CancelCauseFunc // ends a begin, at the next point where nothing is lost
	signals <-chan job.Received
	kept    []unix.Signal // those that came before the job was here
	told    unix.Signal   // the one that said that the job is to leave, or not to come
	asking  unix.Signal   // the last one of --preempt
	askedAt time.Time     // when that came

	ready         chan struct{} // gets when the first checkpoint is to be made
	waitsForFirst atomic.Int32  // who waits until the job is ready for that

	timers  timers
	ended   chan time.Time // gets when the job's command, or its root process, has ended; nil if that is known
	endedAt time.Time      // zero while the command runs
	cause   error          // why what was under way was cut off
	move    Move
	exit    sandbox.Exit
	ends    []time.Time // of the job, after which it was started again

	exitStatus int // to end with, beside err
	err        error
}

// event is an event, with what its answer does not depend on.
type event struct {
	life.Event
	of         life.Action // that has ended
	err        error
	signal     unix.Signal
	checkpoint store.Checkpoint
	removed    []store.Checkpoint
	exit       sandbox.Exit
	move       Move
}

func happened(kind life.Kind) event { return event{Event: life.Event{Kind: kind}} }

// Key is what tells the job of a directory from others on this host.
func Key(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:8])
}

// Run runs a job until it ends, is preempted, or is taken away by another host, and returns the
// exit status to end with. ctx ends what is under way, and leaves the job as it is.
func Run(ctx context.Context, hook *hooks.Hook, o Options, signals *job.Signals) (status int, err error) {
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return 0, err
	}
	if o.Image != "" {
		if o.Image, err = filepath.Abs(o.Image); err != nil {
			return 0, err
		}
	}
	if _, err := Describe(o.Dir); o.Adopt != 0 && errors.Is(err, os.ErrNotExist) {
		if err := checkpoint.CheckRoot(hook, o.Adopt); err != nil {
			return 0, fmt.Errorf("process %d cannot be adopted, and was not touched: %w", o.Adopt, err)
		}
	}
	c := newCore(hook.Filled(), o)
	l := &lease{core: c}
	defer l.release()
	if err := l.claim(ctx); err != nil {
		return 0, err
	}
	// Whatever refuses this command does so before it makes itself the owner of the directory: one
	// that is a copy may be where somebody looks who has the job.
	if left, err := l.hasLeft(); err != nil || left {
		return o.MovedStatus, err
	}
	if c.record.Finished != nil {
		return c.sayFinished(), nil
	}
	if err := checkMade(o.Dir); err != nil && !c.runsOn && !hasStaged(o.Dir) { // else begin looks what became of that
		return 0, err
	}
	if o.User != "" {
		if c.user, err = job.LookupAccount(o.User); err != nil {
			return 0, err
		}
	}
	if from := c.record.Image; from != nil {
		c.PrivateTmp = from.PrivateTmp
	}
	if err := checkHere(ctx, c); err != nil {
		return 0, err
	}
	fileSize, err := proc.RaiseLimit(unix.RLIMIT_FSIZE)
	if err != nil {
		return 0, err
	}
	c.fileSize = &fileSize
	s := &supervisor{
		core: c, starter: starter{lease: l}, checkpointer: checkpointer{core: c}, control: control{core: c},
		signals: signals.Take(), ready: make(chan struct{}),
	}
	defer func() { s.control.end(err) }()
	if c.store, err = store.Open(o.Dir, store.OpenOptions{Takeover: o.Takeover, Codec: o.Compress, Log: c.hook.Log}); err != nil {
		if _, _, why := unreachable(c.hook.Config.RunDir, c.record.Name, o.Dir); errors.Is(err, store.ErrBusy) && why != nil {
			return 0, why
		}
		return 0, err
	}
	defer func() {
		if c.close(); c.runsOn {
			err = errors.Join(err, c.store.Abandon())
			return
		}
		if c.withdrawn {
			err = errors.Join(err, c.store.Withdraw())
			return
		}
		err = errors.Join(err, c.store.Close())
	}()
	if left, err := l.hasLeft(); err != nil || left {
		return o.MovedStatus, err
	}
	if c.record, c.isNew, err = openRecord(o); err != nil {
		return 0, err
	}
	if c.record.Finished != nil {
		return c.sayFinished(), nil
	}
	c.name = c.record.Name
	if c.record.Image == nil && (len(o.Publish) > 0 || o.Net != NetOwn) {
		return 0, UsageError{errors.New("--net and --publish apply only to a job that was started from an image: " +
			"any other has the network of the host")}
	}
	if len(o.Publish) > 0 {
		if c.relay, err = relay.Listen(o.Publish); err != nil {
			return 0, err
		}
		defer c.relay.Close()
	}
	if err := s.control.listen(); err != nil { // before others can find the job
		return 0, err
	}
	all, _ := c.store.Checkpoints()
	if o.Metrics != "" {
		if o.Metrics, err = filepath.Abs(o.Metrics); err != nil {
			return 0, err
		}
	}
	local := Local{
		Metrics: o.Metrics, Name: c.name, Dir: l.known.Dir, PID: os.Getpid(), State: StateBegins, Init: l.known.Init,
		Where: l.known.Where, OutputFrom: l.known.OutputFrom, Restarts: l.known.Restarts, Checkpoint: madeOf(all),
	}
	if local.Checkpoint != nil { // of a job that runs on, until it is resumed
		local.WorkSince = local.Checkpoint.At
	} else if !c.isNew {
		local.WorkSince = c.record.Begun
	}
	if err := c.status.begin(c.runDir, local); err != nil {
		return 0, err
	}
	defer func() { c.status.end(err) }()
	if c.metrics, err = newMetrics(o.Metrics, c.name, local.Checkpoint); err != nil {
		return 0, err
	}
	c.status.shown = c.metrics.show
	shown := o.Output
	if leadsInto(shown, c.outputPath()) { // else what is shown would be output once more, and shown again
		c.say(fmt.Sprintf("warning: standard output leads into %s itself, so the job's output is not shown", c.outputPath()))
		shown = io.Discard
	}
	if c.tail, err = followOutput(c.reporter, c.outputPath(), shown); err != nil {
		return 0, err
	}
	defer c.tail.stop()
	noteFlags(c)
	return s.run(ctx)
}

// run is the loop.
func (s *supervisor) run(ctx context.Context) (status int, err error) {
	s.done = make(chan event, 1)
	s.timers = timers{due: time.NewTimer(time.Hour), look: time.NewTimer(time.Hour), tick: time.NewTicker(sandbox.FencePeriod)}
	defer s.timers.stop()
	s.cutOff = func(error) {}
	defer func() { s.cutOff(nil) }()
	defer s.detach()
	var e event
	if e.err = s.findMove(ctx, &e); e.err != nil {
		return 0, e.err
	}
	for s.handle(ctx, e); s.life.Phase != life.Over; s.handle(ctx, s.next(ctx)) {
	}
	return s.exitStatus, s.err
}

// handle answers an event.
func (s *supervisor) handle(ctx context.Context, e event) {
	if e.Kind == life.Done || s.life.Idle() { // and nobody is about to change the costs
		expected, known := s.checkpointer.costs.expected()
		e.Late = s.Grace > 0 && known && s.timers.left(s.Grace) < expected.total
	}
	switch s.event = e; {
	case e.of == life.Last:
		s.control.made, s.control.lastErr = e.checkpoint, e.err
	case e.of == life.Checkpoint:
		s.control.made = e.checkpoint
	case e.of == life.ReadExit:
		s.exit = e.exit
		e.Again = s.startsAgain()
	case e.of == life.Listen:
		e.Again = s.startsAgain()
	case e.move.ID != "":
		s.move = e.move
	}
	next, actions := s.life.On(e.Event)
	s.life = next
	for _, a := range actions {
		s.do(ctx, a)
	}
}

// next waits for an event.
func (s *supervisor) next(ctx context.Context) event {
	if s.life.Phase == life.Running && len(s.kept) > 0 {
		sig := s.kept[0]
		s.kept = s.kept[1:]
		return s.signalled(sig)
	}
	var due, look <-chan time.Time
	var ready chan struct{}
	if s.life.Waits() {
		due, look, ready = s.timers.due.C, s.timers.look.C, s.ready
	}
	var requests chan *asked
	if s.life.Idle() || s.life.Phase == life.Undecided {
		requests = s.control.requests
	}
	cancelled := ctx.Done()
	if s.life.Phase == life.Starting {
		cancelled = nil // which gives up by itself
	}
	select {
	case <-cancelled:
	case e := <-s.done:
		s.cutOff(nil)
		return e
	case s.endedAt = <-s.ended:
		if s.ended = nil; ctx.Err() == nil {
			return happened(life.JobEnded)
		}
	case <-due:
		_, tooLong := s.checkpointer.exceedsMaxPause()
		return event{Event: life.Event{Kind: life.Due, TooLong: tooLong}}
	case <-ready:
		if s.status.newest() != nil { // somebody else has asked for it meanwhile
			return s.next(ctx)
		}
		return happened(life.Due)
	case <-look:
		return happened(life.LookDue)
	case <-s.timers.tick.C:
		s.metrics.beat()
		return s.lookAround()
	case <-s.timers.timeUp:
		e := happened(life.TimeUp)
		e.err = fmt.Errorf("it did not finish within --grace %v", s.Grace)
		return e
	case a := <-requests:
		if at := s.sandbox; a.of != nil && (at == nil || at.Init() != *a.of) { // another incarnation, which may not be ready
			a.answer(Answer{}, endedBefore(s.name, a.When))
			return s.next(ctx)
		}
		return s.request(a)
	case got := <-s.signals:
		if slices.Contains(s.Preempt, got.Signal) {
			if got.Signal == s.asking && got.At.Sub(s.askedAt) < togetherTime {
				return s.next(ctx)
			}
			s.asking, s.askedAt = got.Signal, got.At
		}
		e := s.signalled(got.Signal)
		e.TooLate = !s.endedAt.IsZero() && got.At.Sub(s.endedAt) > togetherPatience
		return e
	}
	e := happened(life.Cancelled)
	e.err = context.Cause(ctx)
	return e
}

// lookAround looks whether the job still belongs to this host, and whether it was killed under criu.
func (s *supervisor) lookAround() event {
	e := happened(life.Tick)
	if s.life.Idle() {
		_ = s.sandbox.SetRunning() // if it could not be recorded before, which was told
		e.err = s.store.Fenced()
		switch e.Fenced = errors.Is(e.err, store.ErrFenced); {
		case e.err == nil:
			s.tellRemoved()
		case !e.Fenced:
			s.tellFailure(e.err.Error())
		}
	}
	e.Exiting = s.life.Phase == life.Running && s.life.Doing != life.EndSandbox && s.root != nil && s.root.Exiting()
	return e
}

func (s *supervisor) request(a *asked) event {
	e := event{Event: life.Event{Kind: life.Ask, Op: a.Op, OK: true}}
	s.control.asked = a
	if a.Op == life.AskMove && s.life.Idle() {
		e.move, e.err = ReadMove(s.Dir)
		e.OK = e.err == nil && e.move.State == MoveLeaving
	}
	return e
}

// togetherTime is how long a repetition of a signal is the same request: timeout(1) sends a signal to its
// child, and then to the process group, which the child is in.
const togetherTime = 2 * time.Second

func (s *supervisor) signalled(sig unix.Signal) event {
	e := happened(kindOf(sig, s.Preempt))
	e.signal = sig
	return e
}

// kindOf is what a signal says to us.
func kindOf(sig unix.Signal, preempt []unix.Signal) life.Kind {
	switch {
	case slices.Contains(preempt, sig):
		return life.Preempt
	case sig == unix.SIGINT:
		return life.Interrupt
	case sig == unix.SIGQUIT, sig == unix.SIGTERM:
		return life.Quit
	case sig == unix.SIGTSTP:
		return life.Suspend
	}
	return life.Signal
}

// timers say when something is due.
type timers struct {
	due, look *time.Timer // a checkpoint, the first look
	tick      *time.Ticker
	next      time.Time // when a checkpoint is due; zero is never
	deadline  time.Time // of --grace; zero if it does not run
	timeUp    <-chan time.Time
}

func (t *timers) stop() {
	t.due.Stop()
	t.look.Stop()
	t.tick.Stop()
}

// schedule sets the time of the next checkpoint, if there is one.
func (t *timers) schedule(is bool, wait time.Duration) {
	t.due.Stop()
	if t.next = (time.Time{}); is {
		t.due.Reset(wait)
		t.next = time.Now().Add(wait).UTC()
	}
}

func (t *timers) startGrace(grace time.Duration) {
	if grace > 0 && t.deadline.IsZero() {
		t.deadline, t.timeUp = time.Now().Add(grace), time.After(grace)
	}
}

// left is what is left of the grace.
func (t *timers) left(grace time.Duration) time.Duration {
	if t.deadline.IsZero() {
		return grace
	}
	return time.Until(t.deadline)
}
