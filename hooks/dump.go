package hooks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/criuutil/inject"
	"cucriu/criuutil/pages"
	"cucriu/criuutil/proc"
	"cucriu/cudackpt"
	"cucriu/hooks/image"
	"cucriu/hooks/journal"
	"cucriu/hooks/preflight"
	"cucriu/hooks/timeline"
)

// dump is one run of the dump side.
type dump struct {
	*Hook
	criu     *criuutil.Criu
	stage    Stage
	root     int
	imageDir string // criu's own descriptor of it: valid while criu lives

	driver  *cudackpt.Driver
	loading timeline.Phase // of the driver's library
	paused  []proc.Freezer // what the engine has frozen, to be thawed
	thawed  []proc.Freezer // by us; the engine had frozen them
	members []journal.Member
	// stoppedOthers are the processes without CUDA that are stopped, by the pids
	// that the image will have.
	stoppedOthers []int
	others        []*proc.Process        // without CUDA, which we have stopped
	parkedOthers  map[int]*inject.Parked // of these, by their pids
	claimed       *os.File               // the image directory
	store         pages.Store            // of the fast lane
	session       *session
	targets       []*target
	tracer        *inject.Tracer // while the processes are locked
	copies        copies
}

// preDump makes the GPU state of a tree part of its CPU state, so that criu
// can dump it. An error aborts criu's dump; everything has been undone then.
func (h *Hook) preDump(ctx context.Context, criu *criuutil.Criu, stage Stage) (err error) {
	root, err := stage.root()
	if err != nil {
		return err
	}
	go makeRoomForFiles(1000) // how many it will be is not known yet
	h.recoverFirst(ctx)
	d := &dump{Hook: h, criu: criu, stage: stage, root: root, imageDir: stage.ImageDir}
	defer func() {
		if err != nil {
			err = d.failed(err)
		}
		d.letGo()
	}()

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
	if len(d.members) == 0 {
		h.Log.Info("no process of the tree uses CUDA: nothing to do", "root", root)
		if err := image.Clear(d.imageDir); err != nil {
			return err
		}
		return d.refreeze(ctx)
	}
	if err := d.begin(ctx); err != nil {
		return err
	}
	for _, step := range []struct {
		name journal.Step
		do   func(context.Context) error
	}{
		{journal.StepLock, d.lock},
		{journal.StepStop, d.stop},
		{journal.StepPark, d.park},
		{journal.StepTrace, d.trace},
		{journal.StepCheckpoint, d.checkpoint},
		{journal.StepRelease, d.release},
		{journal.StepCopy, d.awaitCopies},
		{journal.StepDrop, d.drop},
		{journal.StepFreeze, d.freeze},
		{journal.StepManifest, d.manifest},
	} {
		if err := d.session.step(step.name, func() error { return step.do(ctx) }); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	h.Log.Info("GPU state is in the processes' own memory, criu takes over", "processes", len(d.targets), "phases", d.session.Phases)
	return d.session.step(journal.StepDumping, func() error { return nil })
}

// begin takes the tree: from here on, whoever is killed, the job comes back as it
// was. The driver can say nothing of a frozen process, so what is paused is thawed
// for the question, with the journal knowing of it.
func (d *dump) begin(ctx context.Context) (err error) {
	if d.paused, err = d.frozen(); err != nil {
		return err
	}
	if len(d.paused) == 0 {
		if err := d.ready(ctx); err != nil {
			return err
		}
		return d.watch()
	}
	if err := d.watch(); err != nil {
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

// frozen finds the freezers that keep a part of the tree from running: what the
// container engine froze before it called criu.
func (d *dump) frozen() ([]proc.Freezer, error) {
	pids, err := proc.Tree(d.root)
	if err != nil {
		return nil, err
	}
	hierarchies, err := proc.ReadHierarchies()
	if err != nil {
		return nil, err
	}
	var all []proc.Freezer
	for _, pid := range pids {
		freezers, err := hierarchies.FrozenBy(pid)
		if err != nil && !errors.Is(err, proc.ErrGone) {
			return nil, err
		}
		for _, freezer := range freezers {
			if !slices.Contains(all, freezer) {
				all = append(all, freezer)
			}
		}
	}
	return all, nil
}

func (d *dump) thaw(ctx context.Context, freezers []proc.Freezer) error {
	for _, freezer := range freezers {
		d.Log.Info("thawing what the container engine froze", "cgroup", freezer.Dir)
		if err := freezer.Thaw(ctx); err != nil {
			return err
		}
		d.thawed = append(d.thawed, freezer)
	}
	return nil
}

// ready asks what only a tree that is not frozen tells: who is stopped, and the
// state of the CUDA processes.
func (d *dump) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.patience())
	defer cancel()
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
	return statesOf(ctx, d.targets, wantRunning)
}

// inspect finds the CUDA processes, and refuses what cannot be dumped. It asks the
// driver nothing that a frozen process would have to answer.
func (d *dump) inspect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.patience())
	defer cancel()
	if err := (*session)(nil).failpoint(ctx, "dump.inspect"); err != nil {
		return err
	}
	if err := d.awaitEarlier(ctx); err != nil {
		return err
	}
	imageDir := d.imageDir
	if d.criu.PagesElsewhere {
		imageDir = "" // how much of it will go there is not known
	}
	ofCriu := make(chan preflight.Findings, 1) // which is asked for its version meanwhile
	go func() { ofCriu <- preflight.CriuFindings(ctx, d.criu) }()
	seen, err := preflight.InspectTree(ctx, d.root, imageDir, d.open)
	findings := <-ofCriu
	if err != nil {
		return err
	}
	if seen.UsesCUDA() {
		seen.Findings = slices.Concat(seen.Findings, preflight.InsideFindings(seen.PIDs, d.criu.PID), findings)
	}
	if d.criu.RPC { // these depend on options that cannot be seen then
		seen.Findings = seen.Findings.Suspected(preflight.FindingCUDAPlugin, preflight.FindingPluginDir, preflight.FindingDiskSpace)
	}
	if err := d.refuse(seen.Findings); err != nil || len(seen.Processes) == 0 {
		return err
	}
	d.members = journal.MembersOf(seen.Processes)
	if d.targets, err = openMembers(d.driver, d.members); err != nil {
		return err
	}
	if len(d.targets) != len(d.members) {
		return errors.New("a CUDA process of the tree ended while it was inspected: dump again")
	}
	return nil
}

// statesOf asks for the state of every process. It can only be asked of one
// that runs; of one that was stopped before we came the restore thread must, for
// as long as the answer takes.
func statesOf(ctx context.Context, targets []*target, tell func(*target, cudackpt.State) error) error {
	stopped := stoppedBefore(targets)
	tracer := inject.NewTracer()
	if err := runRestoreThreads(ctx, tracer, stopped); err != nil {
		return errors.Join(err, releaseThreads(ctx, tracer, nil))
	}
	err := parallel(targets, func(t *target) error {
		state, err := t.cuda.State(ctx)
		if err != nil {
			return err
		}
		return tell(t, state)
	})
	return errors.Join(err, releaseThreads(ctx, tracer, stopped))
}

func wantRunning(t *target, state cudackpt.State) error {
	return preflight.StateFindings(&t.member.Process, state).Err()
}

// awaitEarlier waits until an earlier dump of the same processes is over: after
// criu dump -R its watcher needs a moment to let them run on. Only then is a paused
// container thawed before it was inspected.
func (d *dump) awaitEarlier(ctx context.Context) error {
	members, err := membersOfTree(d.root)
	if err != nil || journal.IsForeign(d.Config.RunDir) {
		return err
	}
	for {
		other, err := journal.Of(d.Config.RunDir, d.criu.Ident, members)
		if err != nil || other == nil {
			return err
		}
		if other.Suspended() || other.Criu == d.criu.Ident {
			return other.Conflict()
		}
		// Its watcher waits until what is paused is resumed.
		frozen, err := d.frozen()
		if err == nil {
			err = d.thaw(ctx, frozen)
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return other.Conflict()
		case <-time.After(20 * time.Millisecond): // no event tells of it
		}
	}
}

// membersOfTree are the processes of a tree, as a journal knows them.
func membersOfTree(root int) ([]journal.Member, error) {
	pids, err := proc.Tree(root)
	if err != nil {
		return nil, err
	}
	var members []journal.Member
	for _, pid := range pids {
		if process, err := proc.Open(pid); err == nil {
			process.Close()
			members = append(members, journal.Member{Process: preflight.Process{Ident: process.Ident}})
		}
	}
	return members, nil
}

func stoppedBefore(targets []*target) []*target {
	return slices.DeleteFunc(slices.Clone(targets), func(t *target) bool { return !t.member.Stopped })
}

// open opens the driver once.
func (d *dump) open() (*cudackpt.Driver, error) {
	if d.driver != nil {
		return d.driver, nil
	}
	start := timeline.SinceBoot()
	driver, err := d.Host().CheckpointDriver()
	if err == nil {
		d.driver = driver
	}
	d.loading = timeline.Phase{Name: "load driver", By: d.by, Start: (start - d.begun).Seconds(), Seconds: (timeline.SinceBoot() - start).Seconds()}
	return driver, err
}

// watch writes the journal and starts the watcher: from here on, whoever is
// killed, the job comes back.
func (d *dump) watch() error {
	imageDir, err := d.stage.imagePath()
	if err != nil {
		return err
	}
	root, err := proc.Open(d.root)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := d.planPages(); err != nil {
		return err
	}
	d.session, err = d.newSession(journal.Record{
		Kind: journal.KindDump, Criu: d.criu.Ident, Client: d.stage.Client, Root: &root.Ident,
		ImageDir: imageDir, CommittedDir: d.stage.CommittedDir,
		LeaveStopped: d.criu.LeaveStopped, LeaveRunning: d.criu.LeaveRunning, RPC: d.criu.RPC, LazyPages: d.criu.LazyPages,
		Members: d.members, Ancestors: ancestorsOf(d.members),
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

// stop puts every thread of the tree into the group-stop: one that synchronized
// with the GPU now would die, and a parent that minds its workers would find that
// they do not answer. Processes that came to the tree meanwhile are looked at again,
// until nobody is left who could make more.
func (d *dump) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.patience())
	defer cancel()
	if err := signalAll(d.targets, unix.SIGSTOP); err != nil {
		return err
	}
	for again := true; again; {
		var err error
		if again, err = d.stopOthers(ctx); err != nil {
			return err
		}
	}
	return d.stopTargets(ctx)
}

// stopOthers stops the processes without CUDA that were not found before, and reports
// whether there were any.
func (d *dump) stopOthers(ctx context.Context) (bool, error) {
	found, err := d.findOthers(ctx)
	if err != nil || len(found) == 0 {
		return false, err
	}
	// The journal first: whoever comes after us continues them.
	for _, other := range found {
		d.session.Others = append(d.session.Others, other.Ident)
	}
	if err := d.session.Save(); err != nil {
		return false, err
	}
	if err := signalProcesses(unix.SIGSTOP, found...); err != nil {
		return false, err
	}
	return true, d.awaitStopped(ctx, found)
}

// awaitStopped waits until processes are stopped. One that waits for its vfork child to
// execute a program is not before that has happened: a child that was stopped on the
// way there is let go on for a moment.
func (d *dump) awaitStopped(ctx context.Context, processes []*proc.Process) error {
	const patience = 50 * time.Millisecond
	for {
		soon, cancel := context.WithTimeout(ctx, patience)
		err := proc.KeepStopped(soon, processes...)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		for _, child := range d.others {
			status, err := proc.ReadStatus(child.PID)
			if err != nil || !slices.ContainsFunc(processes, func(p *proc.Process) bool { return p.PID == status.PPID }) {
				continue
			}
			if states, err := proc.ThreadStates(status.PPID); err != nil || !strings.Contains(states, "D") {
				continue
			}
			if err := signalProcesses(unix.SIGCONT, child); err != nil {
				return err
			}
			time.Sleep(time.Millisecond) // no event tells a stranger of the exec
			if err := signalProcesses(unix.SIGSTOP, child); err != nil {
				return err
			}
		}
	}
}

// findOthers finds the processes without CUDA that run and that were not found
// before. They are closed with the dump.
func (d *dump) findOthers(ctx context.Context) ([]*proc.Process, error) {
	pids, err := proc.Tree(d.root)
	if err != nil {
		return nil, err
	}
	var found []*proc.Process
	for _, pid := range pids {
		isKnown := func(p *proc.Process) bool { return p.PID == pid }
		if slices.ContainsFunc(processesOf(d.targets), isKnown) || slices.ContainsFunc(d.others, isKnown) {
			continue
		}
		p, err := preflight.InspectProcess(ctx, pid, d.open)
		if errors.Is(err, proc.ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := d.refuse(p.Findings); err != nil {
			return nil, err
		}
		if p.Process != nil {
			return nil, fmt.Errorf("process %d (%s) began to use CUDA during the dump: dump again", pid, p.Name)
		}
		stopped, err := proc.Stopped(pid)
		if errors.Is(err, proc.ErrGone) || stopped {
			continue // before we came, and stays so
		}
		if err != nil {
			return nil, err
		}
		process, err := proc.Open(pid)
		if errors.Is(err, proc.ErrGone) {
			continue // a zombie
		}
		if err != nil {
			return nil, err
		}
		d.others = append(d.others, process)
		found = append(found, process)
	}
	return found, nil
}

func (d *dump) stopTargets(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.patience())
	defer cancel()
	if err := signalAll(d.targets, unix.SIGSTOP); err != nil {
		return err
	}
	return d.awaitStopped(ctx, processesOf(d.targets))
}

// trace lets the restore threads, and nothing else, run: the driver works
// through them.
func (d *dump) trace(ctx context.Context) error {
	return parallel(d.targets, func(t *target) (err error) {
		if t.before, err = proc.ReadAddressSpace(t.PID); err != nil {
			return err
		}
		t.member.PrivateBefore = proc.Total(t.before.Private)
		tid, err := t.cuda.RestoreThreadID(ctx)
		if err != nil {
			return err
		}
		t.tracer = inject.NewTracer()
		if d.Config.FastLane.Prefault {
			t.prefault = &prefault{dump: d, target: t, restoreThread: tid, left: t.member.StagedBytes()}
			return t.tracer.RunPopulating(tid, prefaultLeast, func(r proc.Range) bool { return t.prefault.begin(ctx, r) })
		}
		return t.tracer.Run(tid)
	})
}

// checkpoint moves the GPU state of every process into its memory. What the
// first have there is copied out while the others are still at it.
func (d *dump) checkpoint(ctx context.Context) error {
	deadline, cancel := context.WithTimeout(ctx, d.Config.Checkpoint.Timeout)
	defer cancel()
	d.copies.begin(ctx, d.Config.Checkpoint.Timeout)
	return parallel(d.targets, func(t *target) error {
		if err := t.requireHeld(); err != nil {
			return err
		}
		err := d.session.span(t.PID, "checkpoint", func() error { return t.cuda.Checkpoint(deadline) })
		if err := errors.Join(err, t.prefault.end(deadline)); err != nil {
			return err
		}
		if err := t.measureStaged(); err != nil {
			return err
		}
		return d.beginCopy(ctx, t)
	})
}

// release puts the restore threads back into the group-stop, for criu to seize.
func (d *dump) release(ctx context.Context) error {
	return parallel(d.targets, func(t *target) error {
		return releaseThreads(ctx, t.tracer, []*target{t})
	})
}

// freeze meets how criu seizes containers. Through a v1 freezer it waits for
// ever for a process in the group-stop, so such processes are frozen instead
// of stopped. A v2 freezer that we thawed is put back as it was.
func (d *dump) freeze(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.Config.Lock.Timeout)
	defer cancel()
	if err := d.refreeze(ctx); err != nil {
		return err
	}
	for _, t := range d.targets {
		if t.member.Stopped {
			continue
		}
		frozen, err := d.freezeInstead(ctx, t.Process, t.parked)
		if err != nil {
			return err
		}
		t.frozen = frozen
	}
	for _, other := range d.others {
		if _, err := d.freezeInstead(ctx, other, d.parkedOthers[other.PID]); err != nil {
			return err
		}
	}
	return nil
}

// freezeInstead takes a process from stopped to frozen, if criu will seize it
// through a v1 freezer. Nothing runs.
func (d *dump) freezeInstead(ctx context.Context, process *proc.Process, parked *inject.Parked) (bool, error) {
	frozen, err := d.freezeV1(ctx, process.PID)
	if err != nil || !frozen {
		if errors.Is(err, proc.ErrGone) {
			err = nil
		}
		return false, err
	}
	if parked != nil {
		err = parked.Continue(process)
	} else {
		err = process.Signal(unix.SIGCONT)
	}
	if errors.Is(err, proc.ErrGone) {
		err = nil
	}
	return err == nil, err
}

// freezeV1 freezes a process's v1 freezer if criu will seize through it. Under
// RPC the option is not to be seen; there a container's is the usual case. A
// group that holds criu itself is never frozen.
func (d *dump) freezeV1(ctx context.Context, pid int) (bool, error) {
	freezers, err := proc.FreezersOf(pid)
	if err != nil {
		return false, err
	}
	own, err := proc.FreezersOf(d.criu.PID)
	if err != nil {
		return false, err
	}
	for _, freezer := range freezers {
		if freezer.V1 && slices.Contains(d.thawed, freezer) {
			return true, nil // put back as it was
		}
	}
	if !d.criu.FreezeCgroup && !d.criu.RPC {
		return false, nil
	}
	for _, freezer := range freezers {
		if freezer.V1 && !slices.Contains(own, freezer) {
			return true, freezer.Freeze(ctx)
		}
	}
	return false, nil
}

// refreeze puts the freezers back as the engine left them, for whoever thaws
// them later.
func (d *dump) refreeze(ctx context.Context) error {
	return freezeAll(ctx, d.thawed)
}

// manifest tells the restore side what the image holds of CUDA.
func (d *dump) manifest(context.Context) error {
	version, err := d.driver.DriverVersion()
	if err != nil {
		return err
	}
	root, err := proc.ReadStatus(d.root)
	if err != nil {
		return err
	}
	m := image.Manifest{Version: image.ManifestVersion, Created: time.Now().UTC(), DriverVersion: version, RootPID: root.ImagePID()}
	for _, t := range d.targets {
		m.Processes = append(m.Processes, image.Process{
			PID: t.member.ImagePID, Name: t.member.Name, Stopped: t.member.Stopped, Running: t.frozen,
			GPUs: t.member.GPUs, MemoryBytes: t.member.MemoryBytes, Pages: t.member.DroppedPages(),
		})
	}
	m.StoppedOthers = d.stoppedOthers
	if m.Parked, err = d.parkedForImage(); err != nil {
		return err
	}
	if err := m.Write(d.imageDir); err != nil {
		return err
	}
	if err := m.RemoveOtherPages(d.imageDir); err != nil {
		return err
	}
	if d.session.Written, err = image.NoteWritten(d.imageDir, d.outputs()); err != nil {
		return err
	}
	return d.session.Save()
}

// findStopped notes which processes without CUDA are stopped. Nobody has been
// frozen or stopped by us yet.
func (d *dump) findStopped() error {
	pids, err := proc.Tree(d.root)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if slices.ContainsFunc(d.members, func(m journal.Member) bool { return m.PID == pid }) {
			continue
		}
		stopped, imagePID, err := stoppedAs(pid)
		if stopped {
			d.stoppedOthers = append(d.stoppedOthers, imagePID)
		}
		if err != nil && !errors.Is(err, proc.ErrGone) {
			return err
		}
	}
	return nil
}

// stoppedAs reports whether a process is stopped, and which pid it has in the
// image. One that has ended, or ends meanwhile, is not: it has no thread left that
// could be in a stop.
func stoppedAs(pid int) (stopped bool, imagePID int, err error) {
	stopped, err = proc.Stopped(pid)
	if err != nil || !stopped {
		return false, 0, err
	}
	status, err := proc.ReadStatus(pid)
	if err != nil || status.Ended {
		return false, 0, err
	}
	return true, status.ImagePID(), nil
}

func pidsOf(targets []*target) []int {
	pids := make([]int, len(targets))
	for i, t := range targets {
		pids[i] = t.PID
	}
	return pids
}
