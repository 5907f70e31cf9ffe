package hooks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/criuutil/pages"
	"cucriu/criuutil/proc"
	"cucriu/cudackpt"
	"cucriu/hooks/config"
	"cucriu/hooks/gpumap"
	"cucriu/hooks/image"
	"cucriu/hooks/journal"
	"cucriu/hooks/preflight"
)

// preRestore makes every check that needs no process. An error makes criu
// give up before it creates anything.
func (h *Hook) preRestore(ctx context.Context, criu *criuutil.Criu, stage Stage) (err error) {
	defer func() { err = preflight.AsRefusal(err) }()
	manifest, err := image.ReadManifest(stage.ImageDir)
	if errors.Is(err, os.ErrNotExist) {
		h.Log.Info("the image holds no CUDA process: nothing to do")
		return nil
	}
	if err != nil {
		return err
	}
	if err := manifest.MatchImages(stage.ImageDir); err != nil {
		return err
	}
	go makeRoomForFiles(manifest.PageFiles())
	h.recoverFirst(ctx)
	driver, err := h.OpenDriver()
	if err != nil {
		return err
	}
	plan, err := h.Host().PlanRestore(ctx, driver, manifest)
	for _, line := range plan.Explain() {
		h.Log.Info("GPU map: " + line)
	}
	if err != nil {
		return err
	}
	inputs, err := manifest.OpenPages(pages.Files{Dir: stage.ImageDir})
	if err != nil {
		return err
	}
	defer image.ClosePages(inputs)
	var files []*os.File
	for _, input := range inputs {
		files = append(files, input.Files()...)
	}
	imageDir, err := stage.imagePath()
	if err != nil {
		return err
	}
	mark, err := criu.MarkChildren()
	if err != nil {
		h.Log.Debug("what criu creates will not be known by its mark", "error", err)
		mark = 0
	}
	s, err := h.newSession(journal.Record{
		Kind: journal.KindRestore, Criu: criu.Ident, Mark: mark, CriuExe: executable(criu.PID), Client: stage.Client, ImageDir: imageDir,
		LeaveStopped: criu.LeaveStopped, RootParent: criu.RootParent, Manifest: &manifest,
	})
	if err != nil {
		return err
	}
	defer s.Unlock()
	if err := s.step(journal.StepPreRestore, func() error { return h.startWatcher(s, files...) }); err != nil {
		return errors.Join(err, s.close(journal.OutcomeGone, "refused at pre-restore, nothing was created"))
	}
	h.note(s) // criu's time begins
	return nil
}

// noteRoot records the root task at the stages where criu first names it: if
// criu is killed from there on, the watcher knows what to end.
func (h *Hook) noteRoot(ctx context.Context, criu *criuutil.Criu, stage Stage) error {
	if stage.InitPID == "" {
		return nil
	}
	if err := stage.checkRestored(criu); err != nil {
		return err
	}
	s, err := h.sessionOf(journal.KindRestore, criu)
	if err != nil || s == nil {
		return err
	}
	defer s.Unlock()
	if err := s.setRoot(stage); err != nil {
		return err
	}
	return s.failpoint(ctx, "restore."+stage.Action)
}

// checkRestored refuses a root task that criu cannot have restored, because it
// is older: what fails on the restore side is ended.
func (s Stage) checkRestored(criu *criuutil.Criu) error {
	pid, err := s.root()
	if err != nil {
		return nil // the stage that needs it says so
	}
	root, err := proc.Open(pid)
	if errors.Is(err, proc.ErrGone) {
		return nil // it has been ended already
	}
	if err != nil {
		return err
	}
	defer root.Close()
	if root.StartTime < criu.StartTime {
		return fmt.Errorf("CRTOOLS_INIT_PID names process %d, which is older than criu process %d and was not restored by it: was this started by criu?", pid, criu.PID)
	}
	return nil
}

func (s *session) setRoot(stage Stage) error {
	pid, err := stage.root()
	if err != nil {
		return err
	}
	root, err := proc.Open(pid)
	if err != nil {
		return err
	}
	defer root.Close()
	s.Root, s.Step = &root.Ident, journal.Step(stage.Action)
	s.lookAtTree()
	return s.Save()
}

// preResume sends every process a SIGSTOP. They are in criu's ptrace-stop now; the
// signal takes effect before a single instruction of theirs runs.
func (h *Hook) preResume(_ context.Context, criu *criuutil.Criu, stage Stage) error {
	if err := stage.checkRestored(criu); err != nil {
		return err
	}
	s, err := h.sessionOf(journal.KindRestore, criu)
	if err == nil && s == nil {
		if _, manifestErr := os.Lstat(filepath.Join(stage.ImageDir, image.ManifestName)); errors.Is(manifestErr, os.ErrNotExist) {
			return nil
		}
		err = errors.New("the session that pre-restore made for this image is gone from the run directory")
	}
	if err != nil {
		return h.endTree(stage, err)
	}
	defer s.Unlock()
	s.NoteCriu()
	err = s.step(journal.StepPreResume, func() error {
		if err := s.setRoot(stage); err != nil {
			return err
		}
		if err := s.matchMembers(); err != nil {
			return err
		}
		for _, member := range s.Members {
			process, err := proc.Reopen(member.Ident)
			if err != nil {
				return err
			}
			defer process.Close()
			if err := process.Signal(unix.SIGSTOP); err != nil {
				return err
			}
		}
		if err := s.holdOthers(); err != nil {
			return err
		}
		return s.Save()
	})
	if err != nil {
		return h.fail(s, err)
	}
	h.note(s) // criu's time goes on
	return nil
}

// holdOthers stops the processes without CUDA, too, until the GPU state is there.
// If it does not come, the job is ended as it was dumped: what such a process
// had written to its files by then, criu would take for another job's.
func (s *session) holdOthers() error {
	pids, err := proc.Tree(s.Root.PID)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		process, err := proc.Open(pid)
		if errors.Is(err, proc.ErrGone) {
			continue // a zombie, which is restored as one
		}
		if err != nil {
			return err
		}
		err = s.holdOther(process)
		process.Close()
		if err != nil && !errors.Is(err, proc.ErrGone) {
			return err
		}
	}
	return nil
}

func (s *session) holdOther(process *proc.Process) error {
	status, err := proc.ReadStatus(process.PID)
	if err != nil {
		return err
	}
	isMember := slices.ContainsFunc(s.Members, func(m journal.Member) bool { return m.Ident == process.Ident })
	if isMember || slices.Contains(s.Manifest.StoppedOthers, status.ImagePID()) {
		return nil
	}
	s.Others = append(s.Others, process.Ident)
	return process.Signal(unix.SIGSTOP)
}

// letOthersRun lets the processes without CUDA run.
func (s *session) letOthersRun() error {
	for _, other := range s.Others {
		process, err := proc.Reopen(other)
		if err == nil {
			err = process.Signal(unix.SIGCONT)
			process.Close()
		}
		if err != nil && !errors.Is(err, proc.ErrGone) {
			return err
		}
	}
	return nil
}

// matchMembers finds the processes of the manifest in the tree that criu
// named, by the pid in their innermost pid namespace, which is what the image
// knows them by, and notes their parked threads.
func (s *session) matchMembers() error {
	pids, err := proc.Tree(s.Root.PID)
	if err != nil {
		return err
	}
	byImagePID := make(map[int][]int)
	for _, pid := range pids {
		status, err := proc.ReadStatus(pid)
		if errors.Is(err, proc.ErrGone) {
			continue
		}
		if err != nil {
			return err
		}
		byImagePID[status.ImagePID()] = append(byImagePID[status.ImagePID()], pid)
	}
	s.Members, s.Others = nil, nil
	fd := journal.FirstWatcherFD
	for _, p := range s.Manifest.Processes {
		found := byImagePID[p.PID]
		if len(found) != 1 {
			return fmt.Errorf("process %d (%s) of the manifest is found %d times in the restored tree", p.PID, p.Name, len(found))
		}
		process, err := proc.Open(found[0])
		if err != nil {
			return err
		}
		process.Close()
		s.Members = append(s.Members, journal.Member{
			Process: preflight.Process{Ident: process.Ident, ImagePID: p.PID, Name: p.Name, Stopped: p.Stopped, GPUs: p.GPUs, MemoryBytes: p.MemoryBytes},
			Pages:   journal.PagesToFill(p.Pages, &fd),
		})
	}
	return s.noteParked(byImagePID)
}

// postResume gives the restored processes their GPU state back and lets them
// run. criu ignores how it ends, so on a failure it ends the tree itself.
func (h *Hook) postResume(ctx context.Context, criu *criuutil.Criu, stage Stage) error {
	ctx = context.WithoutCancel(ctx) // criu has done its part: there is no way back but this one
	if err := stage.checkRestored(criu); err != nil {
		return err
	}
	s, err := h.latestSessionOf(journal.KindRestore, criu, true)
	if err != nil {
		return err // the watcher goes on
	}
	if s == nil {
		return h.refuseForeign(ctx, stage)
	}
	defer s.Unlock()
	if s.Outcome != "" {
		if s.isOf(stage) {
			return h.reportEnded(s)
		}
		return h.refuseForeign(ctx, stage)
	}
	if len(s.Members) == 0 {
		return h.fail(s, errors.New("pre-resume was cut off before it had stopped the processes: they may have run without their GPU state"))
	}
	s.NoteCriu()
	if err := s.step(journal.StepPostResume, func() error { return h.resume(ctx, s) }); err != nil {
		return h.fail(s, err)
	}
	return s.close(s.ResumedOutcome(), "restored from "+s.ImageDir)
}

// reportEnded says what became of a session that was over before post-resume came
// to it: pre-resume has ended the tree, or somebody has been faster. criu takes no
// notice of it, and its restore succeeds.
func (h *Hook) reportEnded(s *session) error {
	if s.Outcome == s.ResumedOutcome() {
		h.Log.Info("the restore was completed before post-resume", "session", s.Name(), "message", s.Message)
		return nil
	}
	h.Log.Error("the restore was ended before post-resume, whatever criu says of it", "session", s.Name(), "outcome", s.Outcome, "message", s.Message, "image", s.ImageDir)
	return fmt.Errorf("the restore was ended before post-resume (outcome %s, session %s): %s", s.Outcome, s.Name(), s.Message)
}

// isOf reports whether the session is about the tree that criu names now, and
// not about one that the same criu restored before.
func (s *session) isOf(stage Stage) bool {
	pid, err := stage.root()
	if err != nil || s.Root == nil || s.Root.PID != pid {
		return false
	}
	root, err := proc.Reopen(*s.Root)
	if err != nil {
		return errors.Is(err, proc.ErrGone)
	}
	root.Close()
	return true
}

// refuseForeign ends a restored tree that has CUDA in it although its image has
// no manifest: its GPU state could only have been lost.
func (h *Hook) refuseForeign(ctx context.Context, stage Stage) error {
	root, err := stage.root()
	if err != nil {
		return err
	}
	pids, err := proc.Tree(root)
	if errors.Is(err, proc.ErrGone) {
		return nil // pre-resume failed and has ended it
	}
	if err != nil {
		return err
	}
	for _, pid := range pids {
		held, err := preflight.OpenFilesOf(pid)
		if err != nil || !held.Libcuda {
			continue
		}
		driver, err := h.OpenDriver()
		if err != nil {
			return err
		}
		if _, err := driver.Process(pid).RestoreThreadID(ctx); err == nil {
			return h.endTree(stage, fmt.Errorf("process %d uses CUDA, but the image has no manifest (%s) that tells how to restore it: was the image directory copied without it?", pid, image.ManifestName))
		}
	}
	return nil
}

// resume is the driver's side of post-resume.
func (h *Hook) resume(ctx context.Context, s *session) error {
	driver, targets, err := h.openTargets(s)
	if err != nil {
		return err
	}
	defer closeTargets(targets)
	if len(targets) != len(s.Members) {
		return errors.New("a restored CUDA process has ended before its GPU state was back")
	}
	if err := h.mapGPUs(driver, s); err != nil {
		return err
	}
	return h.bringUp(ctx, driver, s, targets)
}

// mapGPUs makes the plan anew from what the restored processes really see (a
// container may see less than its host) and gives every member its pairs.
func (h *Hook) mapGPUs(driver *cudackpt.Driver, s *session) error {
	var visible []cudackpt.GPU
	captured := make([][]cudackpt.GPU, len(s.Members))
	for i, member := range s.Members {
		sees, err := driver.VisibleGPUs(member.PID)
		if err != nil {
			return fmt.Errorf("process %d (%s): %w", member.PID, member.Name, err)
		}
		captured[i] = member.GPUs
		if i == 0 {
			visible = sees
		} else {
			visible = slices.DeleteFunc(visible, func(gpu cudackpt.GPU) bool { return !slices.Contains(sees, gpu) })
		}
	}
	plan, err := gpumap.Make(gpumap.Union(captured...), visible, h.Config.GPUs.Map, h.Config.GPUs.Unmapped)
	if err != nil {
		return err
	}
	for i := range s.Members {
		s.Members[i].Pairs = plan.Pairs(gpumap.UUIDsOf(s.Members[i].GPUs))
	}
	return nil
}

// finishRestore takes a restore that was cut off to a good end: forward if criu
// has completed its part, else the half-restored tree is ended. Of a criu that
// has ended only post-resume tells that it did: it may as well have been killed,
// and whoever saw that may have restored the image elsewhere.
func (h *Hook) finishRestore(ctx context.Context, s *session) error {
	criu, err := proc.Reopen(s.Criu)
	if err == nil {
		criu.Close()
	} else if !errors.Is(err, proc.ErrGone) {
		return err
	}
	if s.Step == journal.StepPostResume || err == nil && s.criuIsThrough() {
		if s.By == byRecover { // whose environment need not be that of criu's hook
			if _, err := h.OpenDriver(); err != nil {
				return err
			}
		}
		err := h.resume(ctx, s)
		if err == nil {
			return s.close(s.ResumedOutcome(), "restored from "+s.ImageDir+", after the hook was cut off")
		}
		if ctx.Err() != nil {
			// Somebody gave up waiting, which says nothing about the job.
			return fmt.Errorf("the restore was interrupted, the next cucriu recover goes on with it: %w", err)
		}
		return h.failQuietly(s, err)
	}
	if s.Root == nil {
		var suspects []int
		if s.Root, suspects, err = s.orphanedRoot(); err != nil {
			return err
		}
		if len(suspects) > 0 {
			h.Log.Warn("a process may be what this restore's criu has left behind, or another restore's: it is left alone", "session", s.Name(), "processes", suspects)
			return s.close(journal.OutcomeGone, fmt.Sprintf("criu ended before it is known to have created a process; the image is intact; "+
				"process %d may be its half-restored root, or another restore's, and was left alone: if no restore is under way, end it", suspects[0]))
		}
	}
	if s.Root == nil {
		return s.close(journal.OutcomeGone, "criu ended before it created a process; the image is intact")
	}
	root, err := proc.Reopen(*s.Root)
	if errors.Is(err, proc.ErrGone) {
		if err := s.end(); err != nil {
			return err
		}
		return s.close(journal.OutcomeGone, "the restore failed and criu ended its processes; the image is intact")
	}
	if err != nil {
		return err
	}
	root.Close()
	return h.failQuietly(s, errors.New("criu ended in the middle of the restore"))
}

// fail ends a restore that cannot be completed: a job that is half restored
// must not run, and criu will not say that it failed.
func (h *Hook) fail(s *session, cause error) error {
	return errors.Join(cause, h.failQuietly(s, cause))
}

func (h *Hook) failQuietly(s *session, cause error) error {
	if h.Config.Restore.OnFailure == config.Leave {
		h.Log.Error("the restore failed; its processes are left stopped for inspection and must not be continued", "root", s.Root, "image", s.ImageDir, "error", cause)
		if err := s.signalTree(unix.SIGSTOP); err != nil {
			return err
		}
		return s.close(journal.OutcomeLeft, cause.Error())
	}
	h.Log.Error("the restore failed; its processes are ended, the image is intact and can be restored again", "root", s.Root, "image", s.ImageDir, "error", cause)
	if err := s.end(); err != nil {
		return err
	}
	return s.close(journal.OutcomeKilled, cause.Error())
}

// endTree ends the tree of a restore that has no session.
func (h *Hook) endTree(stage Stage, cause error) error {
	h.Log.Error("the restore failed; its processes are ended, the image is intact", "error", cause)
	pid, err := stage.root()
	if err != nil {
		return errors.Join(cause, err)
	}
	root, err := proc.Open(pid)
	if err != nil {
		return errors.Join(cause, err)
	}
	defer root.Close()
	return errors.Join(cause, h.takeOn(&journal.Session{Record: journal.Record{Root: &root.Ident}}).end())
}

// end ends the root, all its descendants, and the members wherever they are.
// They are stopped first, so that no parent sees its child killed and acts on it.
func (s *session) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// Again, until a walk finds nobody: what is not stopped yet may fork.
	for ; ; time.Sleep(time.Millisecond) {
		processes, err := s.tree()
		if err != nil {
			return err
		}
		// Not until they are reaped: at pre-resume criu traces the threads, and
		// reaps none of them before this program has ended.
		alive := slices.DeleteFunc(slices.Clone(processes), (*proc.Process).Exiting)
		stopping, cancelStopping := context.WithTimeout(ctx, 2*time.Second)
		_ = proc.Stop(stopping, alive...) // what does not stop is killed all the same
		cancelStopping()
		for _, process := range alive {
			if killErr := process.Signal(unix.SIGKILL); killErr != nil && !errors.Is(killErr, proc.ErrGone) {
				err = killErr
			}
		}
		for _, process := range processes {
			process.Close()
		}
		if err != nil || len(alive) == 0 {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%d processes do not end after SIGKILL", len(alive))
		}
	}
}

func (s *session) signalTree(signal unix.Signal) error {
	processes, err := s.tree()
	if err != nil {
		return err
	}
	for _, process := range processes {
		if signalErr := process.Signal(signal); signalErr != nil && !errors.Is(signalErr, proc.ErrGone) {
			err = signalErr
		}
		process.Close()
	}
	return err
}

// tree takes hold of the living processes of the session.
func (s *session) tree() ([]*proc.Process, error) {
	var processes []*proc.Process
	held := make(map[int]bool)
	hold := func(process *proc.Process, err error) {
		switch {
		case err != nil: // it has ended
		case held[process.PID]:
			process.Close()
		default:
			held[process.PID] = true
			processes = append(processes, process)
		}
	}
	for _, member := range s.Members {
		hold(proc.Reopen(member.Ident))
	}
	for _, id := range slices.Concat(s.Tree, s.Others) {
		hold(proc.Reopen(id))
	}
	if s.Root == nil {
		return processes, nil
	}
	root, err := proc.Reopen(*s.Root)
	if errors.Is(err, proc.ErrGone) {
		return processes, nil
	}
	if err != nil {
		return processes, err
	}
	pids, err := proc.Tree(root.PID)
	hold(root, nil)
	if err != nil && !errors.Is(err, proc.ErrGone) {
		return processes, err
	}
	for _, pid := range pids {
		hold(proc.Open(pid))
	}
	return processes, nil
}
