package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/preflight"
	"cucriu/hooks/timeline"
	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/netlock"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/rundir"
	"cucriu/internal/migrate/commit"
	"cucriu/internal/migrate/delta"
	"cucriu/internal/migrate/prepare"
)

// treeSource is the source's side of the migration of a process tree.
type treeSource struct {
	sourceSession
	root   int
	record *record
	stage  *stage
	of     *prepare.Job
	// addressMoved says that the command that moves the address of the job has begun.
	addressMoved bool
	// begunClock is begun as time since boot.
	begunClock time.Duration
	clocks     clocks
}

func newTreeSource(hook *hooks.Hook, root int, o Options) *treeSource {
	s := &treeSource{root: root, begunClock: timeline.SinceBoot()}
	s.sourceSession = sourceSession{job: s, hook: hook.Filled(), options: o, begun: time.Now()}
	return s
}

// Migrate moves the job whose root process is given to another host. After an error the job goes
// on here, unless the error wraps [hooks.ErrNotBack]; [preflight.Refused] tells whether it was
// touched. If ctx ends before the destination is ready, the migration is given up.
func Migrate(ctx context.Context, hook *hooks.Hook, root int, o Options) (Result, error) {
	s := newTreeSource(hook, root, o)
	defer s.close()
	err := s.run(ctx)
	if s.stage != nil {
		s.result.Timeline = s.timeline()
	}
	return s.result, err
}

func (s *treeSource) close() {
	s.sourceSession.close()
	if s.stage != nil {
		if err := s.stage.settle(s.hook.Config.RunDir); err != nil {
			s.hook.Log.Warn("the directory of the image could not be removed", "directory", s.stage.dir, "error", err)
		}
	}
	if s.record != nil {
		s.record.unlock()
	}
}

// prepare has both hosts judge whether the job can move.
func (s *treeSource) prepare(ctx context.Context) error {
	if err := s.checkRoot(); err != nil {
		return err
	}
	status, err := proc.ReadStatus(s.root)
	if err != nil {
		return err
	}
	if _, err := rundir.MakeSessions(s.hook.Config.RunDir); err != nil {
		return err
	}
	o := &s.options
	s.record = &record{ID: s.result.ID, Host: o.Host, RSH: o.RSH, Remote: o.Remote, Stage: o.Stage, RootPID: s.root, Name: status.Name, Begun: time.Now().UTC(), MoveAddress: o.MoveAddress}
	if err := s.phase("connect", func() error { return s.connect(ctx) }); err != nil {
		return err
	}
	if err := reach(ctx, "migrate.connected"); err != nil {
		return err
	}
	if err := s.phase("prepare", func() error { return s.judge(ctx) }); err != nil {
		return err
	}
	return s.forecast(ctx)
}

func (s *treeSource) judge(ctx context.Context) (err error) {
	if s.of, err = prepare.Describe(ctx, s.hook, s.root, s.options.Criu); err != nil {
		return err
	}
	s.of.Map = slices.Clone(s.hook.Config.MapFor(s.options.Host))
	for i := range s.of.Map { // which the destination judges
		s.of.Map[i].File = s.hook.Config.File + " on " + s.of.Host.Name
	}
	ahead := s.options.Precopy == PrecopyAlways
	asked := prepareMessage{Job: s.of, TCP: s.options.TCP, Copy: s.options.Copy, Ahead: ahead, Force: s.hook.Force, HostMark: hostMark(s.hook.Config.RunDir)}
	if err := s.remote.Send(sayPrepare, asked); err != nil {
		return err
	}
	here, err := prepare.JudgeSource(ctx, s.hook, s.of, prepare.Room{Dir: s.options.Stage, Criu: s.options.Criu, TCP: s.options.TCP, Ahead: ahead})
	if err != nil {
		return err
	}
	there := new(prepare.Judgement)
	if err := s.remote.expect(ctx, sayJudged, there); err != nil {
		return err
	}
	if err := there.Validate(s.of); err != nil {
		return err
	}
	s.result.Report = &prepare.Report{Source: here, Destination: there}
	if err := s.result.Report.Err(); err != nil {
		return err
	}
	if !s.options.DryRun { // whose table has them; those of this end are the dump's, too
		s.hook.Warn(s.options.Host, there.Findings)
	}
	return errors.Join(s.foreseeFiles(ctx), reach(ctx, "migrate.judged"))
}

// begin makes the record and the directory for the image.
func (s *treeSource) begin() error {
	if err := s.record.create(s.hook.Config.RunDir); err != nil {
		return err
	}
	var err error
	if s.stage, err = newStage(s.hook.Config.RunDir, s.options.Stage, s.record.ID, "source"); err != nil {
		return errors.Join(err, s.record.remove())
	}
	return nil
}

// move brings a complete copy of the job to the destination, which holds it.
func (s *treeSource) move(ctx context.Context) error {
	last := 1
	if s.result.Precopied {
		if err := s.ahead(ctx); err != nil {
			return err
		}
		last = 2
	}
	data, err := s.open(ctx, round{Number: last})
	if err != nil {
		return preflight.AsRefusal(err)
	}
	defer data.close()
	if err := reach(ctx, "migrate.opened"); err != nil {
		return err
	}
	written := data.wrote
	if last > 1 {
		written = nil // only what has changed is sent
	}
	err = s.remote.whileConnected(ctx, 0, func(ctx context.Context) error {
		return data.whileSending(ctx, func(ctx context.Context) error { return s.dump(ctx, last, written) })
	})
	if err != nil {
		return err
	}
	if err := reach(ctx, "migrate.dumped"); err != nil {
		return err
	}
	if err := s.block(ctx, s.stage.round(last)); err != nil {
		return err
	}
	s.addressMoved = true
	if err := s.moveAddress(ctx, addressThere); err != nil {
		return err
	}
	d := new(delta.Delta)
	if last > 1 {
		err := s.phase("compare", func() (err error) {
			d, err = s.compare(ctx, last)
			return err
		})
		if err == nil {
			err = reach(ctx, "migrate.compared")
		}
		if err != nil {
			return err
		}
	}
	if err := data.sendImage(ctx, "send", s.stage.round(last), d); err != nil {
		return err
	}
	s.result.Bytes = data.totals.Bytes
	if err := reach(ctx, "migrate.sent"); err != nil {
		return err
	}
	if err := s.phase("restore", func() error { return s.restoreThere(ctx, s.stage.round(last), d) }); err != nil {
		return err
	}
	return reach(ctx, "migrate.ready")
}

// block has the destination answer nothing that comes for the connections that are kept: their address
// moves before their sockets are there.
func (s *treeSource) block(ctx context.Context, dir string) error {
	if s.options.TCP != prepare.TCPKeep {
		return nil
	}
	outside, err := criuimage.OutsideConnections(dir)
	if err != nil || len(outside) == 0 {
		return err
	}
	var asked blockMessage
	for _, c := range outside {
		asked.Connections = append(asked.Connections, netlock.Connection(c))
	}
	if err := s.remote.Send(sayBlock, asked); err != nil {
		return err
	}
	return errors.Join(s.remote.expect(ctx, sayBlocked, nil), reach(ctx, "migrate.blocked"))
}

// ahead sends the job as it is now, while it runs on.
func (s *treeSource) ahead(ctx context.Context) error {
	data, err := s.open(ctx, round{Number: 1})
	if err != nil {
		return preflight.AsRefusal(err)
	}
	defer data.close()
	if err := s.remote.whileConnected(ctx, 0, func(ctx context.Context) error { return s.dumpRunning(ctx, s.stage.round(1)) }); err != nil {
		return err
	}
	err = data.sendImage(ctx, "ahead", s.stage.round(1), new(delta.Delta))
	s.result.Ahead = data.totals.Bytes
	return err
}

// compare finds out what of a round the destination does not have from the first one.
func (s *treeSource) compare(ctx context.Context, last int) (d *delta.Delta, err error) {
	dir := s.stage.round(last) + "-delta"
	err = s.remote.whileConnected(ctx, 0, func(ctx context.Context) error {
		d, err = delta.Compare(ctx, dir, s.record.ID, s.stage.round(1), s.stage.round(last), s.result.Report.Destination.LargestArea)
		return cmp.Or(context.Cause(ctx), err)
	})
	if whole := !imagedir.IsBased(s.stage.round(last)); whole && (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)) {
		s.hook.Log.Warn("there is no room to record what has changed, so the whole image is sent", "error", err)
		return new(delta.Delta), os.RemoveAll(dir)
	}
	return d, err
}

// restoreThere has the destination restore the job, and hold it.
func (s *treeSource) restoreThere(ctx context.Context, dir string, d *delta.Delta) error {
	paths, err := criuimage.BoundSockets(dir)
	if err != nil {
		return err
	}
	asked := restoreMessage{TCP: s.options.TCP, Sockets: prepare.SocketsAt(paths)}
	for _, name := range d.Links {
		asked.Links = append(asked.Links, link{Round: 1, Name: name})
	}
	for _, name := range d.Parents {
		asked.Links = append(asked.Links, link{Round: 1, Name: name, Parent: true})
	}
	if err := s.remote.Send(sayRestore, asked); err != nil {
		return err
	}
	if err := reach(ctx, "migrate.asked"); err != nil {
		return err
	}
	return s.remote.expect(ctx, sayReady, nil)
}

// criuLogLevel is warnings and errors.
const criuLogLevel = 2

// dump dumps the job for its last round and holds it. It tells written of the GPU state.
func (s *treeSource) dump(ctx context.Context, last int, written func(*os.File, int64, int64)) error {
	options := s.dumpOptions()
	options.Hold = &checkpoint.Hold{
		ID: s.record.ID, Peer: s.options.Host, IfAbandoned: checkpoint.RunHere,
		KeepsConnections: s.options.TCP == prepare.TCPKeep,
	}
	options.Written = written
	if last > 1 {
		options.Base = s.stage.round(1)
	}
	options.AtStandstill = func(ctx context.Context, dir string) error {
		truth, err := inventory.Truth(s.of.RootPID)
		if err == nil {
			err = s.later(ctx, truth)
		}
		if err != nil {
			return err
		}
		return s.saveFiles(ctx, truth, dir)
	}
	hook := s.noting(func() {
		if s.halted.IsZero() {
			s.halted = time.Now()
		}
	})
	return s.phase("dump", func() error {
		result, err := checkpoint.Dump(ctx, hook, s.stage.round(last), options)
		s.result.Unchanged = result.Unchanged
		return err
	})
}

// dumpRunning dumps the job into dir, and lets it run on.
func (s *treeSource) dumpRunning(ctx context.Context, dir string) error {
	options := s.dumpOptions()
	options.RPC.LeaveRunning, options.Compare = proto.Bool(true), true
	return s.phase("dump ahead", func() error {
		result, err := checkpoint.Dump(ctx, s.noting(func() {}), dir, options)
		s.limit.end()
		s.result.Before = result.Downtime
		return err
	})
}

// noting is a hook that reports its steps, and the lock, from which on the job is paused.
func (s *treeSource) noting(locks func()) *hooks.Hook {
	hook := *s.hook
	hook.Progress = func(step hooks.Step) {
		if step.Name == checkpoint.StepLock {
			locks()
			s.limit.begin()
		}
		s.tell(Progress{Phase: step.Name})
	}
	return &hook
}

func (s *treeSource) dumpOptions() checkpoint.Options {
	var lock *rpc.CriuNetworkLockMethod
	if s.options.TCP == prepare.TCPClose { // there are no packets to hold back
		lock = rpc.CriuNetworkLockMethod_SKIP.Enum()
	}
	return checkpoint.Options{
		Path: s.options.Criu, Output: os.Stderr, NoChecksums: true,
		RPC: &rpc.CriuOpts{
			Pid: proto.Int32(int32(s.root)), LogLevel: proto.Int32(criuLogLevel),
			TcpClose: proto.Bool(s.options.TCP == prepare.TCPClose), TcpEstablished: proto.Bool(s.options.TCP == prepare.TCPKeep),
			NetworkLock: lock,
		},
	}
}

// What the command that moves the address of a job is told.
const (
	addressThere = "there" // the job is paused, and is about to be restored at the destination
	addressBack  = "back"  // the job stays here; its address may be here still
)

// addressPatience is how long it may take to have the address back.
const addressPatience = time.Minute

// moveAddress runs the user's command, if there is one.
func (s *treeSource) moveAddress(ctx context.Context, where string) error {
	command := s.record.MoveAddress
	if len(command) == 0 {
		return nil
	}
	return s.phase("move address "+where, func() error {
		cmd := exec.CommandContext(ctx, command[0], append(command[1:len(command):len(command)], where)...)
		cmd.Env = append(os.Environ(), "CUCRIU_MIGRATION="+s.record.ID, "CUCRIU_DESTINATION="+s.record.Host)
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		cmd.WaitDelay = time.Second
		// It ends with us: who recovers asks for the address back, and it must not leave after that.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true} // the terminal does not stop it
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s %s: %w", command[0], where, err)
		}
		return nil
	})
}

// moveAddressBack brings the address back for a job that stays here. The job does so even if that
// fails.
func (s *treeSource) moveAddressBack(ctx context.Context) {
	if !s.addressMoved {
		return
	}
	s.addressMoved = false
	ctx, cancel := context.WithTimeout(ctx, addressPatience)
	defer cancel()
	if err := s.moveAddress(ctx, addressBack); err != nil {
		s.hook.Log.Warn("the address of the job may be at the other host, and its connections stall without it", "migration", s.record.ID, "error", err)
	}
}

// state returns where the source stands. Without a session the job was never held.
func (s *treeSource) state() (commit.SourceState, error) {
	held, err := checkpoint.FindHeld(s.hook, s.record.ID)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return commit.Undecided, nil
	case err != nil:
		return "", err
	case held.Decision == checkpoint.EndHere:
		return commit.End, nil
	case held.Decision == checkpoint.RunHere || held.Outcome != "":
		return commit.Back, nil
	}
	return commit.Undecided, nil
}

// decide has the hooks write a decision down and do it. A job that was never held
// runs on.
func (s *treeSource) decide(ctx context.Context, state commit.SourceState) error {
	name, decision := "end here", checkpoint.EndHere
	if state == commit.Back {
		name, decision = "bring back", checkpoint.RunHere
		s.moveAddressBack(ctx)
	}
	err := s.phase(name, func() error { return checkpoint.Decide(ctx, s.hook, s.record.ID, decision) })
	if state == commit.Back && errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil && state == commit.Back && s.hasEnded() {
		// The destination is not told to drop its copy: if it has one, that is the last. What it has not
		// promised it drops by itself.
		return errors.Join(fmt.Errorf("%w: process %d (%s) has ended here meanwhile; if %s holds a complete copy, as cucriu status reports there, it can run there: cucriu recover --take %s",
			hooks.ErrEnded, s.record.RootPID, s.record.Name, s.record.Host, s.record.ID), s.record.remove())
	}
	return err
}

// hasEnded reports whether the job, which was to stay here, is not there any more.
func (s *treeSource) hasEnded() bool {
	session, err := checkpoint.FindHeld(s.hook, s.record.ID)
	if err != nil {
		_, err := os.Stat(fmt.Sprintf("/proc/%d", s.record.RootPID))
		return errors.Is(err, os.ErrNotExist)
	}
	return session.Outcome == checkpoint.OutcomeGone
}

func (s *treeSource) returned(_ context.Context, why string) error {
	return fmt.Errorf("%s reports that a process tree cannot be resumed: %s", s.record.Host, why)
}

func (s *treeSource) told(ctx context.Context, _ commit.SourceState) error {
	if err := checkpoint.NoteTold(ctx, s.hook, s.record.ID); err != nil { // then it is kept for longer
		s.hook.Log.Warn("the journal could not record that the destination was notified", "migration", s.record.ID, "error", err)
	}
	return s.record.remove()
}

func (s *treeSource) forgotten() error {
	return errors.Join(fmt.Errorf("%w: %s no longer has a copy of the job, and the one here was ended after that host had confirmed its copy: was it restarted?", hooks.ErrEnded, s.record.Host), s.record.remove())
}

func (s *treeSource) undelivered(state commit.SourceState, cause error) string {
	if state == commit.End {
		return fmt.Sprintf("the job has left this host, but %s, which holds it complete and stopped, could not be asked to let it run: %v; "+
			"when it can be reached, run here: cucriu recover; or there: cucriu recover --take %s", s.record.Host, cause, s.record.ID)
	}
	return fmt.Sprintf("the job keeps running here, but %s could not be notified: %v; if it holds a copy, that copy stays stopped; "+
		"when it can be reached, run here: cucriu recover; or there: cucriu recover --drop %s", s.record.Host, cause, s.record.ID)
}
