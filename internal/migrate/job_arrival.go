package migrate

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs"
	"cucriu/internal/kit/durable"
	"cucriu/internal/migrate/commit"
	"cucriu/internal/migrate/prepare"
	"cucriu/internal/migrate/wire"
)

// movedJob is a long job on its way to this host, as the record in its directory has it. Who decides
// has the lock of the record.
type movedJob struct {
	*jobs.Arriving
	taken bool // by a person: it is not given back
}

func newMovedJob(host *hooks.Hook, dir, id string) *movedJob {
	return &movedJob{Arriving: jobs.NewArriving(host, dir, id)}
}

func (a *movedJob) state() (commit.DestinationState, bool, error) {
	m, known, err := a.Record()
	states := map[jobs.MoveState]commit.DestinationState{
		jobs.MoveArriving: commit.Receiving,
		jobs.MovePromised: commit.Promised,
		jobs.MoveArrived:  commit.Go,
		jobs.MoveLeft:     commit.Go, // given back
	}
	state, is := states[m.State]
	if err != nil || !known || !is {
		return commit.Receiving, false, err
	}
	return state, true, nil
}

func (a *movedJob) decide(ctx context.Context, next commit.DestinationState) error {
	switch next {
	case commit.Promised:
		return a.Promise(ctx)
	case commit.Dropped:
		return a.Drop()
	}
	return a.Run(ctx, a.taken)
}

// jobArrival is the destination's side of the move of a long job.
type jobArrival struct {
	*destination
	movedJob
	of jobMessage
}

func newJobArrival(d *destination) *jobArrival {
	return &jobArrival{destination: d, movedJob: *newMovedJob(d.hook, "", d.peer.ID)}
}

// state knows nothing of the move before something was changed here.
func (d *jobArrival) state() (commit.DestinationState, bool, error) {
	if !d.IsClaimed() {
		return commit.Receiving, false, nil
	}
	return d.movedJob.state()
}

func (d *jobArrival) decide(ctx context.Context, next commit.DestinationState) error {
	if !d.IsClaimed() {
		return nil
	}
	return d.movedJob.decide(ctx, next)
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
	if err := jobs.CheckJobDir(dir); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, settlePatienceThere)
	defer cancel()
	d.movedJob = *newMovedJob(d.hook, dir, d.peer.ID)
	return d.Claim(waiting)
}

// welcome judges whether the job can come. Nothing is touched.
func (d *jobArrival) welcome(m wire.Message) error {
	if err := m.Decode(&d.of); err != nil {
		return err
	}
	d.movedJob = *newMovedJob(d.hook, d.of.Dir, d.peer.ID)
	have, err := d.MayArrive(d.of.Announced, d.peer.Host)
	if err != nil {
		return preflight.AsRefusal(err)
	}
	room, err := prepare.Free(durable.Existing(d.of.Dir))
	needs := d.of.Image.Room()
	if len(have) == 0 {
		needs += d.of.Bytes // of its newest checkpoint
	}
	if err == nil && room < needs {
		err = fmt.Errorf("the job needs %d bytes to arrive, but the disk of %s has room for %d only",
			needs, d.of.Dir, room)
	}
	if err != nil {
		return preflight.AsRefusal(err)
	}
	return d.Send(sayWelcome, jobWelcome{have})
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

func (d *jobArrival) roundDir() string { return filepath.Join(d.Folder(), fmt.Sprint(d.last)) }

// open makes the job's directory this migration's.
func (d *jobArrival) open(ctx context.Context) (err error) {
	if d.IsOpen() {
		return nil
	}
	if d.of.Dir == "" || d.IsClaimed() {
		return errNoJob
	}
	return d.Begin(ctx, d.peer.Host, d.of.Start)
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
		if err := d.Import(ctx, c.Listed, func(i int) string { return d.received(c.Sent[i]) }); err != nil {
			return err
		}
	}
	for _, f := range manifest.Others {
		if err := d.Take(f.Name, d.received(f.Sent), d.of.Begun); err != nil {
			return err
		}
	}
	if err := durable.Sync(d.of.Dir); err != nil {
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

// verify reads what has arrived, and finds out whether this host can take it.
func (d *jobArrival) verify(ctx context.Context, m jobManifest) (*prepare.Judgement, error) {
	findings, err := d.Verify(ctx, func(name string) bool {
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
	if err := d.Complete(ctx, newest, d.of.Begun); err != nil {
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

func (d *jobArrival) running() running { return running{PID: d.SupervisorPID()} }
func (d *jobArrival) inDoubt() error   { return d.InDoubt() }
func (d *jobArrival) close()           { d.movedJob.Close() }
