package hooks

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/hooks/preflight"
	"cucriu/internal/image"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
	"cucriu/internal/timeline"
)

// dump is one run of the dump side.
type dump struct {
	suspension
	criu     *criuutil.Criu
	stage    Stage
	imageDir string        // may lead through criu's own descriptor: valid while criu lives
	begun    time.Duration // since boot

	claim  imageClaim
	paused []proc.Freezer // frozen by the engine, to be thawed
	// stoppedOthers are the processes without CUDA that were stopped before we came, by the
	// pids that they will have in the image.
	stoppedOthers []int
	lanes         lanes
	manifest      image.Manifest // made before the drop
}

// preDump makes the GPU state of a tree part of its CPU state, so that criu can dump it. An
// error makes criu abort the dump. By then everything has been undone, or the watcher goes
// on trying.
func (c *call) preDump(ctx context.Context) (err error) {
	root, err := c.stage.root()
	if err != nil {
		return err
	}
	go makeRoomForFiles(1000) // their number is not known yet
	recoverFirst(ctx, c.Hook)
	d := &dump{suspension: suspension{Hook: c.Hook, root: root}, criu: c.criu, stage: c.stage, imageDir: c.stage.ImageDir, begun: c.begun}
	name, err := c.stage.imagePath()
	if err != nil {
		return err
	}
	d.claim = imageClaim{Hook: c.Hook, criu: c.criu, dir: d.imageDir, name: name, root: root}
	d.lanes.dump = d
	d.onCheckpointed = d.lanes.beginCopy
	defer func() {
		d.lanes.stopCopies()
		if err != nil {
			err = d.failed(err)
		}
		d.lanes.close()
		d.claim.close()
		d.letGo()
	}()
	return d.run(ctx)
}

// run is the dump from its beginning to the point where criu takes over. If a step fails, or this
// program is killed in it, the one way back ([bringBack]) undoes what was done; its steps that undo
// a step are named beside that.
func (d *dump) run(ctx context.Context) error {
	// Nothing is touched up to here.
	if err := requireProcess(d.root); err != nil {
		return err
	}
	if err := d.claim.take(ctx, false); err != nil {
		return err
	}
	if err := d.inspect(ctx); err != nil {
		return err
	}
	if err := d.claim.take(ctx, true); err != nil {
		return err
	}
	if err := checkUnneeded(d.Config.RunDir, d.imageDir); err != nil {
		return err
	}
	if len(d.members) == 0 && d.stage.Hold == nil {
		d.Log.Info("no process of the tree uses CUDA: nothing to do", "root", d.root)
		if err := image.RemoveEarlier(d.imageDir); err != nil {
			return err
		}
		return d.refreeze(ctx)
	}
	// The journal, the watcher, and the thaw of what is paused.
	if err := d.begin(ctx); err != nil { // refreeze
		return err
	}
	err := d.session.doSteps(ctx, []step{
		{journal.StepLock, d.lockTargets},            // unlock
		{journal.StepStop, d.stopTree},               // continue, others
		{journal.StepPark, d.parkTree},               // unpark
		{journal.StepChildren, d.releaseChildren},    // not undone: the children cannot use what they lose
		{journal.StepTrace, d.trace},                 // release
		{journal.StepCheckpoint, d.lanes.checkpoint}, // stop, trace, restore
		{journal.StepRelease, d.release},             // trace
		{journal.StepDevices, d.releaseDevices},      // not undone, as the children
		{journal.StepCopy, d.lanes.awaitCopies},      // the files are removed
		{journal.StepDrop, d.lanes.drop},             // restore fills the memory in first
		{journal.StepFreeze, d.freeze},               // stop thaws, pause freezes again
		{journal.StepManifest, d.writeManifest},      // the image directory is not complete without criu's part
	})
	if err != nil {
		return err
	}
	d.Log.Info("GPU state is in the processes' own memory, criu takes over", "processes", len(d.targets), "phases", d.session.Phases)
	return d.session.doStep(journal.StepDumping, func() error { return nil })
}

// begin takes hold of the tree: from here on the job comes back as it was, whichever
// program is killed. The driver can say nothing of a frozen process. So what is paused is
// thawed before the driver is asked, after the journal has noted it.
func (d *dump) begin(ctx context.Context) (err error) {
	if d.paused, err = frozen(d.root); err != nil {
		return err
	}
	if len(d.paused) == 0 {
		if err := d.ready(ctx); err != nil {
			return err
		}
		return d.startSession()
	}
	if err := d.startSession(); err != nil {
		return err
	}
	if err := d.thaw(ctx, d.paused); err != nil {
		return err
	}
	if err := d.session.failpoint(ctx, "dump.thawed"); err != nil {
		return err
	}
	if err := d.ready(ctx); err != nil {
		return err
	}
	return d.session.Save()
}

// ready asks what only a tree that is not frozen can tell: which processes are stopped, and
// the state of the CUDA processes.
func (d *dump) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.patienceForAll())
	defer cancel()
	// Another dump stops the processes only after its session is there, and continues them
	// before it closes that. Looking for it before and after shows whose stop is seen.
	if err := d.refuseTaken(); err != nil {
		return err
	}
	for _, t := range d.targets {
		stopped, err := proc.Stopped(t.PID)
		if err != nil {
			return err
		}
		t.member.Stopped = stopped
	}
	var err error
	if d.stoppedOthers, err = findStopped(d.root, d.members); err != nil {
		return err
	}
	// To ask one that another dump has stopped would take the restore thread from that dump.
	if err := d.refuseTaken(); err != nil {
		return err
	}
	return statesOf(ctx, d.targets, wantRunning)
}

// refuseTaken refuses processes that are in another's open session, as long as there is none
// of our own, which would have been refused.
func (d *dump) refuseTaken() error {
	if d.session != nil {
		return nil
	}
	other, err := journal.FindOpen(d.Config.RunDir, d.criu.Ident, d.members)
	if err != nil || other != nil {
		return errors.Join(err, other.Conflict())
	}
	return nil
}

// startSession writes the journal and starts the watcher. From here on the job comes back,
// whichever program is killed.
func (d *dump) startSession() error {
	imageDir, err := d.stage.imagePath()
	if err != nil {
		return err
	}
	root, err := proc.IdentOf(d.root)
	if err != nil {
		return err
	}
	if err := d.lanes.plan(); err != nil {
		return err
	}
	d.session, err = d.newSession(journal.Record{
		Kind: journal.KindDump, Criu: d.criu.Ident, Client: d.stage.Client, Root: &root,
		ImageDir: imageDir, CommittedDir: d.stage.CommittedDir,
		LeaveStopped: d.criu.LeaveStopped, LeaveRunning: d.criu.LeaveRunning, RPC: d.criu.RPC, LazyPages: d.criu.LazyPages,
		Members: d.members, Ancestors: ancestorsOf(d.members), Hold: d.stage.Hold,
		Paused: slices.Concat(d.thawed, d.paused),
	}, d.stage.Action, d.begun)
	if err != nil {
		return err
	}
	if d.loading.took > 0 {
		d.session.Phases = append(d.session.Phases, timeline.Phase{Name: "load driver", By: d.stage.Action, Start: (d.loading.start - d.begun).Seconds(), Seconds: d.loading.took.Seconds()})
	}
	d.session.NotePhase(0, timeline.Phase{Name: "inspect", By: d.stage.Action})
	if err := d.session.failpoint(context.Background(), "dump.watch"); err != nil {
		return err
	}
	if err := d.lanes.create(); err != nil {
		return err
	}
	return d.session.timed("watch", func() error { return d.session.startWatcher(append(d.lanes.files(), d.claim.file)...) })
}

// makeRoomForFiles makes room for n files in this process's table of descriptors. The
// kernel enlarges a table that threads share only after an RCU grace period: 15 to 40 ms,
// from 64 descriptors on. So this is done while something else goes on. And it is done only
// if it is needed, because a process cannot end in the middle of it.
func makeRoomForFiles(n int) {
	const most, others = 1 << 12, 16
	if n += others; n <= 64 || n > most {
		return
	}
	if fd, err := unix.FcntlInt(uintptr(unix.Stderr), unix.F_DUPFD_CLOEXEC, n); err == nil {
		unix.Close(fd)
	}
}

// requireProcess refuses a root that is no process: criu asks the hook first.
func requireProcess(root int) error {
	findings, err := preflight.ProcessFindings(root)
	if err != nil {
		return err
	}
	findings = slices.DeleteFunc(findings, func(f preflight.Finding) bool { return f.Name != preflight.FindingNoProcess })
	return findings.Err()
}
