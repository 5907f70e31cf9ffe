package stages

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/hooks/config"
	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
	"cucriu/hooks/timeline"
	"cucriu/internal/core/engine"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/core/watch"
	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/rundir"
)

// dump is one run of the dump side.
type dump struct {
	engine.Suspension
	criu     *criuutil.Criu
	stage    Stage
	imageDir string        // may lead through criu's own descriptor: valid while criu lives
	begun    time.Duration // since boot

	claim  session.ImageClaim
	paused []proc.Freezer // frozen by the engine, to be thawed
	// stoppedOthers are the processes without CUDA that were stopped before we came, by the pids that
	// they will have in the image.
	stoppedOthers []int
	lanes         lanes
	manifest      imagedir.Manifest // made before the drop
	truth         *inventory.Tree   // read under the stop
	settings      func() ([]proc.Settings, error)
}

// preDump makes the GPU state of a tree part of its CPU state. An error makes criu abort the dump; by
// then everything is undone, or the watcher keeps trying.
func (c *call) preDump(ctx context.Context) (err error) {
	root, err := c.stage.root()
	if err != nil {
		return err
	}
	go makeRoomForFiles(1000) // their number is not known yet
	watch.RecoverFirst(ctx, c.Env)
	d := &dump{Suspension: engine.Suspension{Env: c.Env, Root: root}, criu: c.criu, stage: c.stage, imageDir: c.stage.ImageDir, begun: c.begun}
	name, err := c.stage.imagePath()
	if err != nil {
		return err
	}
	d.claim = session.ImageClaim{Env: c.Env, Criu: c.criu, Dir: d.imageDir, Name: name, Root: root}
	d.lanes.dump = d
	d.OnCheckpointed = d.lanes.beginCopy
	defer func() {
		d.lanes.stopCopies()
		if err != nil {
			err = d.Failed(c.named(err))
		}
		d.lanes.close()
		d.claim.Close()
		d.Close()
	}()
	return d.run(ctx)
}

// run is the dump up to the point where criu takes over. If a step fails, or this program is killed in
// it, the one way back ([engine.BringBack]) undoes what was done: beside each step are the steps of
// that which undo it.
func (d *dump) run(ctx context.Context) error {
	// Nothing is touched up to here.
	if err := requireProcess(d.Root); err != nil {
		return err
	}
	d.stage.Claim.Close() // criu's own descriptor takes over
	if err := d.claim.Take(ctx, false); err != nil {
		return err
	}
	if err := d.inspect(ctx); err != nil {
		return err
	}
	if err := d.claim.Take(ctx, true); err != nil {
		return err
	}
	root, err := proc.IdentOf(d.Root)
	if err == nil {
		err = session.CheckUnneeded(d.Config.RunDir, d.imageDir, d.claim.Name, root)
	}
	if err != nil {
		return err
	}
	if len(d.Members) == 0 && d.stage.Hold == nil {
		d.Log.Info("no process of the tree uses CUDA: nothing to do", "root", d.Root)
		err := imagedir.RemoveEarlier(d.imageDir, image.TimelineName, image.OptionsName)
		if err := errors.Join(err, d.noteStopped()); err != nil {
			return err
		}
		return d.Refreeze(ctx)
	}
	// The journal, the watcher, and the thaw of what is paused.
	if err := d.begin(ctx); err != nil { // refreeze
		return err
	}
	err = d.Session.DoSteps(ctx, []session.Step{
		{Name: journal.StepLock, Do: d.Lock},                   // unlock
		{Name: journal.StepStop, Do: d.stopTree},               // continue, others
		{Name: journal.StepMove, Do: d.moveMemory},             // move
		{Name: journal.StepPark, Do: d.parkTree},               // unpark
		{Name: journal.StepChildren, Do: d.releaseChildren},    // not undone: the children cannot use what they lose
		{Name: journal.StepTrace, Do: d.Trace},                 // release
		{Name: journal.StepCheckpoint, Do: d.lanes.checkpoint}, // stop, trace, restore
		{Name: journal.StepRelease, Do: d.Release},             // trace
		{Name: journal.StepDevices, Do: d.releaseDevices},      // not undone, as the children
		{Name: journal.StepCopy, Do: d.lanes.awaitCopies},      // the files are removed
		{Name: journal.StepDrop, Do: d.lanes.drop},             // restore fills the memory in first
		{Name: journal.StepFreeze, Do: d.freeze},               // stop thaws, pause freezes again
		{Name: journal.StepManifest, Do: d.writeManifest},      // the image directory is not complete without criu's part
	})
	if err != nil {
		return err
	}
	d.Log.Info("GPU state is in the processes' own memory, criu takes over", "processes", len(d.Targets), "phases", d.Session.Phases)
	return d.Session.DoStep(journal.StepDumping, func() error { return nil })
}

// noteStopped tells the program that drives criu that the tree is stopped.
func (d *dump) noteStopped() error {
	if d.stage.Stopped == nil {
		return nil
	}
	return d.stage.Stopped()
}

// begin takes hold of the tree: from here on the job is restored as it was, whichever program is killed.
// The driver can say nothing of a frozen process, so what is paused is thawed first, and the journal
// notes it before that.
func (d *dump) begin(ctx context.Context) (err error) {
	if d.paused, err = proc.FrozenTree(d.Root); err != nil {
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
	if err := d.Session.Failpoint(ctx, "dump.thawed"); err != nil {
		return err
	}
	if err := d.ready(ctx); err != nil {
		return err
	}
	return d.Session.Save()
}

// ready asks what only a tree that is not frozen can tell: which processes are stopped, and the state
// of the CUDA processes.
func (d *dump) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.PatienceForAll())
	defer cancel()
	// Another dump stops the processes only after its session is there, and continues them before it
	// closes that. Looking for it before and after shows whose stop is seen.
	if err := d.refuseTaken(); err != nil {
		return err
	}
	for _, t := range d.Targets {
		stopped, err := proc.Stopped(t.PID)
		if err != nil {
			return err
		}
		t.Member.Stopped = stopped
	}
	var err error
	if d.stoppedOthers, err = findStopped(d.Root, d.Members); err != nil {
		return err
	}
	// To ask one that another dump has stopped would take the restore thread from that dump.
	if err := d.refuseTaken(); err != nil {
		return err
	}
	return engine.StatesOf(ctx, d.Targets, engine.WantRunning)
}

// refuseTaken fails if another open session has one of the processes. It does not look once this dump
// has a session: creating that has checked it.
func (d *dump) refuseTaken() error {
	if d.Session != nil {
		return nil
	}
	other, err := journal.FindOpen(d.Config.RunDir, proc.Ident(d.criu.Ident), d.Members)
	if err != nil || other != nil {
		return errors.Join(err, other.Conflict())
	}
	return nil
}

// startSession writes the journal and starts the watcher. From here on the job is restored, whichever
// program is killed.
func (d *dump) startSession() error {
	imageDir, err := d.stage.imagePath()
	if err != nil {
		return err
	}
	root, err := proc.IdentOf(d.Root)
	if err != nil {
		return err
	}
	if err := d.lanes.plan(); err != nil {
		return err
	}
	d.Session, err = d.NewSession(journal.Record{
		Kind: journal.KindDump, Criu: proc.Ident(d.criu.Ident), Client: d.stage.Client, Root: &root,
		ImageDir: imageDir, PublishedDir: d.stage.PublishedDir,
		LeaveStopped: d.criu.LeaveStopped, LeaveRunning: d.criu.LeaveRunning, RPC: d.criu.RPC, LazyPages: d.criu.LazyPages,
		Members: d.Members, Ancestors: session.AncestorsOf(d.Members), Hold: d.stage.Hold,
		Paused: slices.Concat(d.Thawed, d.paused),
	}, d.stage.Action, d.begun)
	if err != nil {
		return err
	}
	if d.Loading.Took > 0 {
		d.Session.Phases = append(d.Session.Phases, timeline.Phase{Name: "load driver", By: d.stage.Action, Start: (d.Loading.Start - d.begun).Seconds(), Seconds: d.Loading.Took.Seconds()})
	}
	d.Session.NotePhase(0, timeline.Phase{Name: "inspect", By: d.stage.Action})
	if err := d.Session.Failpoint(context.Background(), "dump.watch"); err != nil {
		return err
	}
	if err := d.lanes.create(); err != nil {
		return err
	}
	held := append(d.lanes.files(), d.claim.File)
	if d.goesOn() {
		keeper, err := d.Session.OpenKeeper(journal.FirstWatcherFD + len(held))
		if err != nil {
			return err
		}
		defer keeper.Close()
		held = append(held, keeper)
	}
	return d.Session.Timed("watch", func() error { return d.Session.StartWatcher(held...) })
}

// goesOn reports whether the job is to go on here in any case.
func (d *dump) goesOn() bool {
	return (d.criu.LeaveRunning || d.criu.LeaveStopped) && d.stage.Hold == nil
}

// makeRoomForFiles makes room for n files in this process's table of descriptors, while something else
// goes on: the kernel enlarges a table that threads share only after an RCU grace period of 15 to 40
// ms, in which the process cannot end either.
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
	findings, err := inspect.ProcessFindings(root)
	if err != nil {
		return err
	}
	findings = slices.DeleteFunc(findings, func(f preflight.Finding) bool { return f.Name != preflight.FindingNoProcess })
	return findings.Err()
}

// inspect finds the CUDA processes, and refuses what cannot be dumped. It asks the driver nothing that
// a frozen process would have to answer.
func (d *dump) inspect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.PatienceForAll())
	defer cancel()
	if err := failpoint.Hit(ctx, "dump.inspect", 0); err != nil {
		return err
	}
	if err := d.awaitEarlier(ctx); err != nil {
		return err
	}
	imageDir := d.imageDir
	if d.criu.PagesElsewhere {
		imageDir = "" // how much of the image will go there is not known
	}
	look := sync.OnceValues(func() (*inventory.Tree, error) { return inventory.Advice(d.Root) })
	ofCriu := make(chan preflight.Findings, 1) // criu is asked for its version meanwhile
	go func() { ofCriu <- inspect.CriuFindings(ctx, d.criu, look) }()
	advice, err := look()
	var seen *inspect.Inspection
	if err == nil {
		seen, err = inspect.Tree(ctx, advice, imageDir, d.stage.Prefetched, d.LoadDriver)
	}
	findings := <-ofCriu
	if err != nil {
		return session.GivenUp(ctx, err)
	}
	if inside := inspect.InsideFindings(seen.PIDs, d.criu.PID); len(inside) > 0 {
		if len(seen.Processes) == 0 {
			return nil // criu says so itself
		}
		seen.Findings = inside // the others may be about criu and this hook
	} else if seen.UsesCUDA() {
		seen.Findings = append(seen.Findings, findings...)
	}
	if !d.criu.RPC && !d.criu.FreezeCgroup { // whoever freezes a container tells criu by which group, over RPC
		paused, err := proc.Frozen(advice.PIDs)
		if err != nil {
			return err
		}
		seen.Findings = append(seen.Findings, inspect.FrozenFindings(paused)...)
	}
	if d.criu.RPC { // these depend on options that cannot be seen under RPC
		seen.Findings = seen.Findings.Soften(preflight.FindingCUDAPlugin, preflight.FindingPluginDir, preflight.FindingDiskSpace)
	}
	if err := d.Refuse(seen.Findings); err != nil || len(seen.Processes) == 0 {
		return err
	}
	d.Members = journal.MembersOf(seen.Processes)
	if d.Targets, err = engine.OpenMembers(d.Driver, d.Members); err != nil {
		return err
	}
	if len(d.Targets) != len(d.Members) {
		return errors.New("a CUDA process of the tree ended while it was inspected: dump again")
	}
	if seen.Room != nil {
		d.JudgeRoom = func() (preflight.Findings, error) {
			findings, err := seen.Room.Judge(journal.ProcessesOf(d.Members))
			if d.criu.RPC && !(d.stage.Compare && d.Config.FastLane.Compress == config.Uncompressed) { // as above, but for our own
				findings = findings.Soften(preflight.FindingDiskSpace)
			}
			return findings, err
		}
	}
	d.countOOMKills()
	return nil
}

// countOOMKills begins to count what the out-of-memory killer ends in the targets' control groups.
func (d *dump) countOOMKills() {
	hierarchies, err := proc.ReadHierarchies()
	for _, t := range d.Targets {
		var counter *proc.OOMCounter
		if err == nil {
			counter, err = hierarchies.CountOOMKills(t.PID)
		}
		if counter != nil {
			d.OOMKills = append(d.OOMKills, counter)
		}
	}
	if err != nil {
		d.Log.Debug("kills by the out-of-memory killer cannot be counted", "error", err)
	}
}

// awaitEarlier waits until an earlier dump of the same processes is over: after criu dump -R its
// watcher needs a moment. In no other case is a paused container thawed before it is inspected.
func (d *dump) awaitEarlier(ctx context.Context) error {
	members, err := session.MembersOfTree(d.Root)
	if err != nil || rundir.IsForeign(d.Config.RunDir) {
		return err
	}
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) { // there is no event to wait for
		other, err := journal.FindOpen(d.Config.RunDir, proc.Ident(d.criu.Ident), members)
		if err != nil || other == nil {
			return err
		}
		if other.Suspended() || other.EndsJob() || other.Criu == proc.Ident(d.criu.Ident) {
			return other.Conflict()
		}
		// The watcher of that dump waits until the paused container is resumed.
		paused, err := proc.FrozenTree(d.Root)
		if err == nil {
			err = d.thaw(ctx, paused)
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return other.Conflict()
		case <-time.After(pause):
		}
	}
}
