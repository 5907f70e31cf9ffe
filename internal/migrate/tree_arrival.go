package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"google.golang.org/protobuf/proto"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/preflight"
	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/files"
	"cucriu/internal/kit/netlock"
	"cucriu/internal/migrate/commit"
	"cucriu/internal/migrate/prepare"
	"cucriu/internal/migrate/wire"
)

// heldTree is a process tree on its way to this host, as the journal of the hooks has it.
type heldTree struct {
	host *hooks.Hook
	id   string
}

func (a *heldTree) state() (state commit.DestinationState, known bool, err error) {
	s, err := checkpoint.FindHeld(a.host, a.id)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return commit.Receiving, false, nil
	case err != nil:
		return "", false, err
	case s.Decision == checkpoint.RunHere:
		return commit.Go, true, nil
	case s.Decision == checkpoint.EndHere || s.Outcome != "":
		return commit.Dropped, true, nil
	case s.Promised:
		return commit.Promised, true, nil
	}
	return commit.Receiving, true, nil
}

func (a *heldTree) decide(ctx context.Context, next commit.DestinationState) (err error) {
	switch next {
	case commit.Promised:
		return checkpoint.Promise(ctx, a.host, a.id)
	case commit.Go:
		err = checkpoint.Decide(ctx, a.host, a.id, checkpoint.RunHere)
	case commit.Dropped:
		if err = checkpoint.Decide(ctx, a.host, a.id, checkpoint.EndHere); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	default:
		return nil
	}
	if err != nil {
		return err
	}
	return netlock.Unblock(a.id)
}

// treeArrival is the destination's side of the migration of a process tree.
type treeArrival struct {
	*destination
	heldTree
	stage     *stage
	of        *prepare.Job
	judgement *prepare.Judgement
	copies    prepare.Copy // which files come with it
	made      madeRecord
	// giveUp gives a restore up that has begun.
	giveUp    context.CancelCauseFunc
	restoring bool
	// clearing removes what is not needed any more, which takes seconds for many GiB.
	clearing sync.WaitGroup
	pid      int // of the restored root
}

func newTreeArrival(d *destination) *treeArrival {
	return &treeArrival{
		destination: d, heldTree: heldTree{host: d.hook, id: d.peer.ID},
		made: madeRecord{path: filepath.Join(recordsDir(d.hook.Config.RunDir), d.peer.ID+madeSuffix)},
	}
}

func (d *treeArrival) handle(ctx context.Context, m wire.Message) error {
	switch m.Kind {
	case sayPrepare:
		return d.prepare(ctx, m)
	case sayLater:
		return d.later(ctx, m)
	case sayRound:
		return d.listen(ctx, m)
	case sayBlock:
		return d.block(ctx, m)
	case sayRestore:
		return d.restore(ctx, m)
	}
	return fmt.Errorf("unknown action %.40q", m.Kind)
}

func (d *treeArrival) prepare(ctx context.Context, m wire.Message) error {
	var asked prepareMessage
	if err := m.Decode(&asked); err != nil {
		return err
	}
	if asked.Job == nil {
		return errNoJob
	}
	if own := hostMark(d.hook.Config.RunDir); own != "" && own == asked.HostMark {
		return preflight.AsRefusal(errors.New("this is the host on which the job runs"))
	}
	d.options.Stage = cmp.Or(d.options.Stage, defaultStage)
	if err := checkStage(d.options.Stage); err != nil {
		return preflight.AsRefusal(err)
	}
	d.removeMade() // of others, who were killed
	if err := preflight.CheckForce(asked.Force); err != nil {
		return preflight.AsRefusal(err)
	}
	d.hook.Force = asked.Force
	if asked.TCP == prepare.TCPKeep { // whether this host can
		if err := errors.Join(netlock.Block(d.id, nil), netlock.Unblock(d.id)); err != nil {
			return preflight.AsRefusal(fmt.Errorf("connections cannot be kept: %w", err))
		}
	}
	judgement, err := prepare.Judge(ctx, d.hook, asked.Job, prepare.Room{Dir: d.options.Stage, Criu: d.options.Criu, TCP: asked.TCP, Copy: asked.Copy, Ahead: asked.Ahead})
	if err != nil {
		return preflight.AsRefusal(err)
	}
	d.of, d.judgement, d.copies = asked.Job, judgement, asked.Copy
	if len(d.of.Map) > 0 {
		d.hook.Config.GPUs.Map = d.of.Map
	}
	if err := d.Send(sayJudged, judgement); err != nil {
		return err
	}
	return reach(ctx, "receive.judged")
}

// later judges again, with what the job has come to use meanwhile.
func (d *treeArrival) later(ctx context.Context, m wire.Message) error {
	var asked laterMessage
	if err := m.Decode(&asked); err != nil {
		return err
	}
	if d.of == nil || asked.Job == nil || d.giveUp != nil {
		return errNoJob
	}
	judgement, err := prepare.JudgeLater(ctx, d.hook, asked.Job, d.copies)
	if err != nil {
		return err
	}
	d.of, d.judgement = asked.Job, judgement
	if err := reach(ctx, "receive.later"); err != nil {
		return err
	}
	return d.Send(sayJudged, judgement)
}

// listen makes ready for the data of a round.
func (d *treeArrival) listen(ctx context.Context, m wire.Message) (err error) {
	var r round
	if err := m.Decode(&r); err != nil {
		return err
	}
	if d.of == nil || d.giveUp != nil || r.Number > maxRounds || !r.Probe && r.Number != d.last+1 {
		return fmt.Errorf("round %d cannot begin now", r.Number)
	}
	if d.receiver != nil {
		if err := d.endRound(); err != nil {
			return fmt.Errorf("round %d: %w", d.last, err)
		}
	}
	if d.stage == nil {
		if d.stage, err = newStage(d.hook.Config.RunDir, d.options.Stage, d.id, "destination"); err != nil {
			return err
		}
	}
	probe := filepath.Join(d.stage.dir, "probe")
	if err := os.RemoveAll(probe); err != nil {
		return err
	}
	dir := probe
	if !r.Probe {
		d.last, dir = r.Number, d.stage.round(r.Number)
	}
	if err := d.beginRound(ctx, dir); err != nil {
		return err
	}
	return reach(ctx, "receive.listening")
}

// block drops what comes for connections that are kept, until it is decided where the job runs.
func (d *treeArrival) block(ctx context.Context, m wire.Message) error {
	var asked blockMessage
	if err := m.Decode(&asked); err != nil {
		return err
	}
	if d.of == nil || d.giveUp != nil {
		return errNoJob
	}
	for _, c := range asked.Connections {
		if !c.Local.IsValid() || !c.Remote.IsValid() || c.Local.Addr().Is4() != c.Remote.Addr().Is4() {
			return fmt.Errorf("%v to %v is not a TCP connection", c.Local, c.Remote)
		}
	}
	err := d.made.begin()
	if err == nil {
		err = netlock.Block(d.id, asked.Connections)
	}
	if err != nil {
		return err
	}
	return errors.Join(reach(ctx, "receive.blocked"), d.Send(sayBlocked, nil))
}

// restore begins the restore of the last round. It runs while messages are handled.
func (d *treeArrival) restore(ctx context.Context, m wire.Message) error {
	var asked restoreMessage
	if err := m.Decode(&asked); err != nil {
		return err
	}
	if d.receiver == nil || d.giveUp != nil {
		return errors.New("nothing that could be restored was received")
	}
	for _, s := range asked.Sockets {
		if s.SeenHere() {
			return errors.New("the job " + prepare.SharedSocket(s.Path))
		}
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
	ctx, d.giveUp = context.WithCancelCause(ctx)
	hold := &checkpoint.Hold{ID: d.id, Peer: d.peer.Host, IfAbandoned: checkpoint.EndHere, KeepsConnections: asked.TCP == prepare.TCPKeep}
	d.restoring = true
	go func() { d.restored <- d.restoreHeld(ctx, d.stage.round(d.last), hold, asked.TCP) }()
	return nil
}

// linkEarlier gives the last round the files that it has in common with earlier ones.
func (d *treeArrival) linkEarlier(links []link) error {
	if len(links) > maxFiles {
		return errors.New("too many files of earlier rounds are listed")
	}
	root, err := os.OpenRoot(d.stage.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, l := range links {
		if l.Round < 1 || l.Round >= d.last || l.Name != filepath.Base(l.Name) || strings.HasPrefix(l.Name, ".") {
			return fmt.Errorf("%.80q of round %d is not a file of an earlier round", l.Name, l.Round)
		}
		from, to := filepath.Base(d.stage.round(l.Round)), filepath.Base(d.stage.round(d.last))
		if l.Parent {
			to = filepath.Join(to, criuimage.ParentName)
			if err := root.Mkdir(to, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
		}
		if err := root.Link(filepath.Join(from, l.Name), filepath.Join(to, l.Name)); err != nil {
			return err
		}
	}
	return nil
}

func (d *treeArrival) restoreHeld(ctx context.Context, dir string, hold *checkpoint.Hold, tcp prepare.TCP) error {
	if err := d.putFiles(ctx, dir); err != nil {
		return err
	}
	noting := *d.hook
	noting.Progress = func(step hooks.Step) { _ = d.Send(sayProgress, progressMessage{step.Name}) }
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

// putFiles makes the files and directories on this host that it has asked for.
func (d *treeArrival) putFiles(ctx context.Context, dir string) error {
	if d.copies == prepare.CopyNone {
		return nil
	}
	making := func(m files.Made) error {
		return errors.Join(d.made.note(m), reach(ctx, "receive.making"))
	}
	var makes []prepare.Directory
	for _, n := range d.judgement.Makes {
		makes = append(makes, d.of.SocketDirectories[n])
	}
	slices.SortFunc(makes, func(a, b prepare.Directory) int { return cmp.Compare(a.Path, b.Path) }) // one may be in another
	for _, m := range makes {
		if err := files.MakeDirectory(m.Path, m.Mode, uint32(m.UID), uint32(m.GID), making); err != nil {
			return err
		}
	}
	changes, err := files.PutBack(ctx, dir, files.PutBackOptions{OnlyMissing: d.copies == prepare.CopyMissing, Making: making})
	for _, change := range changes {
		if change.Kept != "" {
			d.hook.Log.Info(change.String())
		}
	}
	return errors.Join(err, reach(ctx, "receive.put"))
}

// onRestored promises a copy that is complete to the source.
func (d *treeArrival) onRestored(err error) error {
	d.restoring = false
	d.giveUp(nil)
	if err == nil && isDropped(d.hook, d.id) {
		err = errors.New("the source has cancelled the migration meanwhile")
	}
	if err == nil {
		err = d.made.promise()
	}
	if err == nil {
		err = d.handleEvent(commit.Complete)
	}
	if err == nil {
		stage := d.stage
		d.stage = nil
		d.clearing.Go(func() { _ = stage.remove() }) // the memory is needed; the job has its own now
	}
	return err
}

// giveUpPatience is how long a restore that was given up may take to end.
const giveUpPatience = time.Minute

// stop gives up a restore that is under way, and waits for its end. What it has restored is not
// promised, so it is ended with the decision.
func (d *treeArrival) stop(cause error) {
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

// abort sees to it that what the source has given up is never promised.
func (d *treeArrival) abort() error {
	if err := noteDropped(d.hook, d.id); err != nil {
		return err
	}
	d.stop(errors.New("the source keeps its own copy"))
	return nil
}

func (d *treeArrival) running() running {
	r := running{PID: d.pid, Steps: stepsOf(d.hook, d.id)}
	if held, err := checkpoint.FindHeld(d.hook, d.id); err == nil && held.RootPID != 0 {
		r.PID = held.RootPID
	}
	return r
}

func (d *treeArrival) inDoubt() error {
	return fmt.Errorf("the job of migration %s stays stopped here until the source reports its decision (cucriu recover there); "+
		"otherwise decide here with cucriu recover --take %[1]s (%[2]s) or --drop %[1]s (%[3]s)", d.id, commit.WhenToTake, commit.WhenToDrop)
}

func (d *treeArrival) removeMade() {
	if err := removeMade(d.hook); err != nil {
		d.hook.Log.Warn(err.Error())
	}
}

func (d *treeArrival) close() {
	if !d.restoring { // else files are still being made; the next receive or recover removes them
		d.made.close()
		d.removeMade()
	}
	if d.stage != nil {
		_ = d.stage.remove()
	}
	d.clearing.Wait()
}
