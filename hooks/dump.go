package hooks

import (
	"context"
	"errors"
	"os"
	"slices"

	"cucriu/criuutil"
	"cucriu/internal/image"
	"cucriu/internal/journal"
	"cucriu/internal/pages"
	"cucriu/internal/proc"
	"cucriu/internal/timeline"
)

// dump is one run of the dump side.
type dump struct {
	suspension
	criu     *criuutil.Criu
	stage    Stage
	imageDir string // may lead through criu's own descriptor: valid while criu lives

	paused []proc.Freezer // frozen by the engine, to be thawed
	// stoppedOthers are the processes without CUDA that were stopped before we came, by the
	// pids that they will have in the image.
	stoppedOthers []int
	claimed       *os.File    // the image directory
	store         pages.Store // of the fast lane
	copies        copies
	manifest      image.Manifest // made before the drop
}

// onPreDump makes the GPU state of a tree part of its CPU state, so that criu can dump it. An
// error makes criu abort the dump. By then everything has been undone, or the watcher goes
// on trying.
func (h *Hook) onPreDump(ctx context.Context, criu *criuutil.Criu, stage Stage) (err error) {
	root, err := stage.root()
	if err != nil {
		return err
	}
	go makeRoomForFiles(1000) // their number is not known yet
	h.recoverFirst(ctx)
	d := &dump{suspension: suspension{Hook: h, root: root}, criu: criu, stage: stage, imageDir: stage.ImageDir}
	d.onCheckpointed = d.beginCopy
	defer func() {
		d.stopCopies()
		if err != nil {
			err = d.failed(err)
		}
		d.closeImage()
		d.letGo()
	}()

	if err := requireProcess(root); err != nil {
		return err
	}
	if err := d.claim(ctx, false); err != nil {
		return err
	}
	if err := d.inspect(ctx); err != nil {
		return err
	}
	if err := d.claim(ctx, true); err != nil {
		return err
	}
	if err := h.checkUnneeded(d.imageDir); err != nil {
		return err
	}
	if len(d.members) == 0 && stage.Hold == nil {
		h.Log.Info("no process of the tree uses CUDA: nothing to do", "root", root)
		if err := image.RemoveEarlier(d.imageDir); err != nil {
			return err
		}
		return d.refreeze(ctx)
	}
	if err := d.begin(ctx); err != nil {
		return err
	}
	err = d.session.doSteps(ctx, []step{
		{journal.StepLock, d.lockTargets},
		{journal.StepStop, d.stopTree},
		{journal.StepPark, d.parkTree},
		{journal.StepChildren, d.releaseChildren},
		{journal.StepTrace, d.trace},
		{journal.StepCheckpoint, d.checkpointAndCopy},
		{journal.StepRelease, d.release},
		{journal.StepDevices, d.releaseDevices},
		{journal.StepCopy, d.awaitCopies},
		{journal.StepDrop, d.drop},
		{journal.StepFreeze, d.freeze},
		{journal.StepManifest, d.writeManifest},
	})
	if err != nil {
		return err
	}
	h.Log.Info("GPU state is in the processes' own memory, criu takes over", "processes", len(d.targets), "phases", d.session.Phases)
	return d.session.doStep(journal.StepDumping, func() error { return nil })
}

// begin takes hold of the tree: from here on the job comes back as it was, whichever
// program is killed. The driver can say nothing of a frozen process. So what is paused is
// thawed before the driver is asked, after the journal has noted it.
func (d *dump) begin(ctx context.Context) (err error) {
	if d.paused, err = d.frozen(); err != nil {
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
	if err := d.findStopped(); err != nil {
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
	if err := d.planPages(); err != nil {
		return err
	}
	d.session, err = d.newSession(journal.Record{
		Kind: journal.KindDump, Criu: d.criu.Ident, Client: d.stage.Client, Root: &root,
		ImageDir: imageDir, CommittedDir: d.stage.CommittedDir,
		LeaveStopped: d.criu.LeaveStopped, LeaveRunning: d.criu.LeaveRunning, RPC: d.criu.RPC, LazyPages: d.criu.LazyPages,
		Members: d.members, Ancestors: ancestorsOf(d.members), Hold: d.stage.Hold,
		Paused: slices.Concat(d.thawed, d.paused),
	})
	if err != nil {
		return err
	}
	if d.loading.Seconds > 0 {
		d.session.Phases = append(d.session.Phases, d.loading)
	}
	d.session.NotePhase(0, timeline.Phase{Name: "inspect", By: d.by})
	if err := d.session.failpoint(context.Background(), "dump.watch"); err != nil {
		return err
	}
	if err := d.createPages(); err != nil {
		return err
	}
	return d.session.timed("watch", func() error { return d.startWatcher(d.session, append(d.pageFiles(), d.claimed)...) })
}
