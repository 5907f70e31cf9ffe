package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/first"
	"cucriu/internal/kit/guest"
	"cucriu/internal/migrate/commit"
	"cucriu/internal/migrate/prepare"
	"cucriu/internal/migrate/wire"
)

// movedJob is a long job on its way to this host, as the record in its directory has it. Who decides
// has the lock of the record.
type movedJob struct {
	host  *hooks.Hook
	moved *jobs.Movable
	dir   string
	id    string
	taken bool // by a person: it is not given back
}

func newMovedJob(host *hooks.Hook, dir, id string) *movedJob {
	return &movedJob{host: host, moved: jobs.MovableIn(host, dir), dir: dir, id: id}
}

func (a *movedJob) state() (state commit.DestinationState, known bool, err error) {
	m, err := jobs.ReadMove(a.dir)
	if err != nil {
		return commit.Receiving, false, err
	}
	if m.ID != a.id {
		if came, err := jobs.HasArrived(a.dir, a.id); err != nil || came {
			return commit.Go, came, err
		}
		return commit.Receiving, false, nil
	}
	switch m.State {
	case jobs.MoveArriving:
		return commit.Receiving, true, nil
	case jobs.MovePromised:
		return commit.Promised, true, nil
	case jobs.MoveArrived:
		return commit.Go, true, nil
	case jobs.MoveLeft: // given back
		return commit.Go, m.Returned != "", nil
	}
	return commit.Receiving, false, nil
}

// decide brings the job to run in Go, unless it runs or has run here. If it cannot be resumed, it is
// given back: never run here from then on.
func (a *movedJob) decide(ctx context.Context, next commit.DestinationState) error {
	m, err := jobs.ReadMove(a.dir)
	if err != nil || m.ID != a.id {
		return err // nothing of it is here, or no longer
	}
	switch {
	case next == commit.Promised:
		m.State = jobs.MovePromised
		if m.Events, err = a.moved.EventsSize(); err == nil {
			err = m.Write(a.dir)
		}
		return err
	case next == commit.Dropped:
		return a.drop(m)
	case m.Returned != "":
		return &givenBackError{m.Returned}
	case m.State != jobs.MoveArrived:
		m.State, m.Before, m.Taken = jobs.MoveArrived, nil, a.taken
		if err := m.Write(a.dir); err != nil {
			return err
		}
	}
	if err := reach(ctx, "job.arrived"); err != nil {
		return err
	}
	switch why := a.moved.Start(ctx, m); {
	case why == nil || a.taken:
		return why
	case errors.Is(why, jobs.ErrUnclear):
		return fmt.Errorf("%w: %w", hooks.ErrNotBack, why)
	default:
		return a.giveBack(ctx, m, why)
	}
}

// drop removes what has arrived. A job that had left this host before has left it still.
func (a *movedJob) drop(m jobs.Move) error {
	err := os.RemoveAll(filepath.Join(a.dir, arrivingName))
	if m.Before != nil {
		return errors.Join(err, m.Before.Write(a.dir), a.moved.NoteMoved())
	}
	if err = errors.Join(err, a.moved.Remove()); err == nil && m.Made {
		err = os.Remove(a.dir)
	}
	return err
}

// giveBack gives a job back that could not be resumed here: its error is a [*givenBackError]. From
// then on it never runs here, so the source may let it run.
func (a *movedJob) giveBack(ctx context.Context, m jobs.Move, why error) error {
	stuck := func(err error) error { return fmt.Errorf("%w: %w: %w", hooks.ErrNotBack, err, why) }
	if err := a.moved.Open(); err != nil { // no supervisor is at work
		return stuck(err)
	}
	defer a.moved.Close()
	if err := a.moved.RequireGone(); err != nil {
		return stuck(err)
	}
	if ran, err := a.moved.Resumed(m.Events); err != nil || ran {
		return err
	}
	if err := a.moved.UndoFiles(); err != nil {
		return stuck(err)
	}
	if err := reach(ctx, "job.returning"); err != nil {
		return err
	}
	m.State, m.Returned, m.PeerKnows = jobs.MoveLeft, printable(why.Error()), true
	if err := m.Write(a.dir); err != nil {
		return err
	}
	if err := reach(ctx, "job.returned"); err != nil {
		return err
	}
	return &givenBackError{m.Returned}
}

// arrivingName is the folder in the job's directory for what comes.
const arrivingName = ".arriving"

// jobArrival is the destination's side of the move of a long job.
type jobArrival struct {
	*destination
	movedJob
	of   jobMessage
	lock *jobs.MoveLock // held from the first change in the job's directory on
}

func newJobArrival(d *destination) *jobArrival {
	return &jobArrival{destination: d, movedJob: *newMovedJob(d.hook, "", d.peer.ID)}
}

// state knows nothing of the move before something was changed here.
func (d *jobArrival) state() (commit.DestinationState, bool, error) {
	if d.lock == nil {
		return commit.Receiving, false, nil
	}
	return d.movedJob.state()
}

func (d *jobArrival) decide(ctx context.Context, next commit.DestinationState) error {
	if d.lock == nil {
		return nil
	}
	if err := d.movedJob.decide(ctx, next); err != nil || next != commit.Promised {
		return err
	}
	if err := d.moved.Close(); err != nil { // the supervisor opens it
		return err
	}
	return reach(ctx, "job.promised")
}

func (d *jobArrival) handle(ctx context.Context, m wire.Message) error {
	switch m.Kind {
	case sayJob:
		return d.welcome(m)
	case sayRound:
		return d.listen(ctx, m)
	case sayTake:
		return d.take(ctx)
	}
	return fmt.Errorf("unknown action %.40q", m.Kind)
}

// settlePatienceThere is how long another program at the destination may take to notice that its
// connection is lost.
const settlePatienceThere = time.Minute

// claim takes the lock of a job whose source tells its decision over a new connection.
func (d *jobArrival) claim(ctx context.Context, dir string) error {
	if err := checkJobDir(dir); err != nil {
		return err
	}
	m, err := jobs.ReadMove(dir)
	if err != nil {
		return err
	}
	if m.State == jobs.MoveNone {
		if came, err := jobs.HasArrived(dir, d.id); err != nil || !came {
			return err
		}
	}
	waiting, cancel := context.WithTimeout(ctx, settlePatienceThere)
	defer cancel()
	d.movedJob = *newMovedJob(d.hook, dir, d.id)
	d.lock, err = jobs.LockMove(waiting, dir)
	return err
}

// welcome judges whether the job can come. Nothing is touched.
func (d *jobArrival) welcome(m wire.Message) error {
	if err := m.Decode(&d.of); err != nil {
		return err
	}
	d.movedJob = *newMovedJob(d.hook, d.of.Dir, d.id)
	before, err := d.mayArrive()
	if err != nil {
		return preflight.AsRefusal(err)
	}
	var has jobWelcome
	if before.State == jobs.MoveLeft {
		if has.Have, err = have(d.moved); err != nil {
			return preflight.AsRefusal(err)
		}
	}
	room, err := prepare.Free(durable.Existing(d.dir))
	if err == nil && room < d.of.Bytes && len(has.Have) == 0 {
		err = fmt.Errorf("the job's newest checkpoint has %d bytes, but the disk of %s has room for %d only", d.of.Bytes, d.dir, room)
	}
	if err != nil {
		return preflight.AsRefusal(err)
	}
	return d.Send(sayWelcome, has)
}

// have lists the checkpoints that a job has here, without their files.
func have(job *jobs.Movable) ([]jobs.Listed, error) {
	all, err := job.List(func(string, uint32) bool { return true })
	for i := range all {
		all[i].Files = nil
	}
	return all, err
}

// mayArrive fails unless the directory of a job is missing or empty, or the job has left it. It
// returns the record of an earlier move.
func (d *jobArrival) mayArrive() (before jobs.Move, err error) {
	if err := errors.Join(checkJobDir(d.dir), durable.CheckPath("job directory", d.dir, 1)); err != nil {
		return before, err
	}
	entries, err := os.ReadDir(d.dir)
	if errors.Is(err, os.ErrNotExist) {
		return before, nil
	}
	if err != nil {
		return before, fmt.Errorf("job directory: %w", err)
	}
	if err := d.moved.View(); err != nil || len(entries) == 0 { // is it root's alone?
		return before, err
	}
	host, _ := os.Hostname()
	if owner, err := d.moved.Owner(); err == nil && owner != "" && owner == d.of.Owner {
		return before, fmt.Errorf("%[1]s is shared by both hosts, so nothing has to be sent: run cucriu jobs stop %[1]s on %[2]s, then cucriu run --dir %[1]s on %[3]s", d.dir, d.peer.Host, host)
	}
	if before, err = jobs.ReadMove(d.dir); err != nil {
		return before, err
	}
	if before.State == jobs.MovePromised {
		return before, &jobs.ElsewhereError{Dir: d.dir, Move: before}
	}
	if before.State == jobs.MoveArriving || before.State == jobs.MoveNone && d.isEmptyStore() == nil {
		return before, nil
	}
	if same, err := d.moved.BeganAt(d.of.Begun); err != nil || !same {
		return before, fmt.Errorf("%s is not empty, and not the directory of this job: remove it if it is not needed", d.dir)
	}
	if before.State != jobs.MoveLeft {
		return before, fmt.Errorf("%s has the same job, which has not left this host (see cucriu jobs show %[1]s): end it and remove the directory, if it is not needed", d.dir)
	}
	return before, nil
}

// isEmptyStore returns an error if a directory has anything but what a destination makes there before
// it records the move: it may have been killed in between.
func (d *jobArrival) isEmptyStore() error {
	dir := d.dir
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !slices.Contains([]string{"lock", "owner.json", "checkpoints", "staged", "move.lock"}, entry.Name()) {
			return fmt.Errorf("%s is no longer empty: it has %s", dir, entry.Name())
		}
	}
	all, err := have(d.moved)
	if err == nil && len(all) > 0 {
		err = fmt.Errorf("%s is no longer empty: it has checkpoints", dir)
	}
	return err
}

// listen makes ready for the data of a round.
func (d *jobArrival) listen(ctx context.Context, m wire.Message) error {
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

func (d *jobArrival) roundDir() string {
	return filepath.Join(d.dir, arrivingName, fmt.Sprint(d.last))
}

// open makes the job's directory this migration's.
func (d *jobArrival) open(ctx context.Context) (err error) {
	if d.lock != nil && d.moved.IsOpen() {
		return nil
	}
	if d.dir == "" || d.lock != nil {
		return errNoJob
	}
	_, missing := os.Lstat(d.dir)
	if err := d.moved.Open(); err != nil {
		return preflight.AsRefusal(err)
	}
	lock, err := jobs.TryLockMove(d.dir)
	if err != nil {
		return errors.Join(preflight.AsRefusal(err), d.moved.Close())
	}
	if err := d.noteArriving(ctx, errors.Is(missing, os.ErrNotExist)); err != nil {
		return errors.Join(preflight.AsRefusal(err), lock.Free(), d.moved.Close())
	}
	d.lock = lock
	_ = d.moved.NoteArriving()
	arriving := filepath.Join(d.dir, arrivingName)
	if err := os.RemoveAll(arriving); err != nil {
		return err
	}
	if err := d.moved.RemoveLeftovers(); err != nil {
		return err
	}
	return os.Mkdir(arriving, 0o700)
}

// noteArriving writes the record of the move, now that nobody else can open the store.
func (d *jobArrival) noteArriving(ctx context.Context, made bool) error {
	before, err := jobs.ReadMove(d.dir)
	if err == nil && before.State != jobs.MoveLeft && before.State != jobs.MoveArriving {
		err = d.isEmptyStore()
	}
	if err == nil {
		err = reach(ctx, "job.arriving")
	}
	if err != nil {
		return err
	}
	move := jobs.Move{ID: d.id, State: jobs.MoveArriving, Peer: d.peer.Host, Start: d.of.Start, Made: made}
	switch before.State {
	case jobs.MoveLeft:
		move.Before = &before
	case jobs.MoveArriving: // of a program that was killed
		move.Before, move.Made = before.Before, before.Made
	}
	return move.Write(d.dir)
}

// take makes checkpoints of what has arrived, and verifies them. Those that go ahead are looked at
// as a resume does: what stands in its way is said while the job still runs.
func (d *jobArrival) take(ctx context.Context) error {
	if err := d.endRound(); err != nil {
		return err
	}
	defer os.RemoveAll(d.roundDir())
	manifest, err := d.readManifest()
	if err != nil {
		return err
	}
	if err := reach(ctx, "job.taking"); err != nil {
		return err
	}
	for _, c := range manifest.Checkpoints {
		if len(c.Sent) != len(c.Files) {
			return fmt.Errorf("checkpoint %.40q: %d files were announced, but %d were sent", c.Name, len(c.Files), len(c.Sent))
		}
		if err := d.moved.Import(ctx, c.Listed, func(i int) string { return d.received(c.Sent[i]) }); err != nil {
			return err
		}
	}
	for _, f := range manifest.Others {
		if err := d.takeOther(f); err != nil {
			return err
		}
	}
	if err := durable.Sync(d.dir); err != nil {
		return err
	}
	judgement, err := d.verify(ctx, manifest)
	if err != nil {
		return err
	}
	if manifest.Newest != "" {
		return d.promise(ctx, manifest.Newest)
	}
	return d.Send(sayTaken, judgement)
}

// received is where a file of the round is.
func (d *jobArrival) received(name string) string {
	return filepath.Join(d.roundDir(), filepath.Base(filepath.Clean("/"+name)))
}

const maxManifestBytes = 256 << 20

func (d *jobArrival) readManifest() (m jobManifest, err error) {
	path := d.received(jobManifestName)
	info, err := os.Lstat(path)
	if err == nil && info.Size() > maxManifestBytes {
		err = fmt.Errorf("it has %d bytes", info.Size())
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		return m, fmt.Errorf("invalid list of sent files: %w", err)
	}
	return m, nil
}

// takeOther moves a file of the job that belongs to no checkpoint to its place.
func (d *jobArrival) takeOther(f jobFile) error {
	if !slices.Contains(jobs.TravelFiles(), f.Name) {
		return fmt.Errorf("%.80q is not a file of a job", f.Name)
	}
	from := d.received(f.Sent)
	if f.Name == jobs.TravelFiles()[0] {
		is, err := d.moved.IsOf(from, d.of.Begun)
		if err != nil {
			return err
		}
		if !is {
			return errors.New("the record that was sent belongs to another job")
		}
	}
	if mode, is := map[string]os.FileMode{first.File: first.Mode, guest.File: guest.Mode}[f.Name]; is {
		if err := os.Chmod(from, mode); err != nil { // criu compares it
			return err
		}
	}
	if err := durable.Sync(from); err != nil {
		return err
	}
	return os.Rename(from, filepath.Join(d.dir, f.Name))
}

// verify reads what has arrived, and finds out whether this host can take it.
func (d *jobArrival) verify(ctx context.Context, m jobManifest) (*prepare.Judgement, error) {
	findings, err := d.moved.Verify(ctx, func(name string) bool {
		return slices.ContainsFunc(m.Checkpoints, func(sent jobCheckpoint) bool { return sent.Name == name })
	})
	if err != nil {
		return nil, err
	}
	judgement := prepare.Judged(d.hook, "", findings)
	if err := judgement.Err(); err != nil {
		return nil, preflight.AsRefusal(fmt.Errorf("the job cannot be resumed here: %w", err))
	}
	return judgement, nil
}

// promise holds the job ready until the source has decided.
func (d *jobArrival) promise(ctx context.Context, newest string) error {
	if err := d.moved.RequireComplete(newest, d.of.Begun); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(d.dir, arrivingName)); err != nil {
		return err
	}
	if err := reach(ctx, "job.promise"); err != nil {
		return err
	}
	return d.handleEvent(commit.Complete)
}

// No part of a move runs beside the messages.
func (d *jobArrival) abort() error { return nil }
func (d *jobArrival) stop(error)   {}

func (d *jobArrival) running() running {
	return running{PID: d.moved.SupervisorPID()}
}

func (d *jobArrival) inDoubt() error {
	m, err := jobs.ReadMove(d.dir)
	return errors.Join(err, &jobs.ElsewhereError{Dir: d.dir, Move: m})
}

func (d *jobArrival) close() {
	_ = d.moved.Close()
	if d.lock != nil {
		_ = d.lock.Free()
	}
}
