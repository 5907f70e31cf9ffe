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
	"cucriu/cudackpt"
	"cucriu/hooks/gpumap"
	"cucriu/internal/config"
)

// preRestore makes every check that needs no process. An error makes criu
// give up before it creates anything.
func (h *Hook) preRestore(ctx context.Context, criu *criuutil.Criu, stage Stage) error {
	manifest, err := ReadManifest(stage.ImageDir)
	if errors.Is(err, os.ErrNotExist) {
		h.Log.Info("the image holds no CUDA process: nothing to do")
		return nil
	}
	if err != nil {
		return err
	}
	driver, err := h.OpenDriver()
	if err != nil {
		return err
	}
	plan, err := h.CheckHost(ctx, driver, manifest)
	for _, line := range plan.Explain() {
		h.Log.Info("GPU map: " + line)
	}
	if err != nil {
		return err
	}
	imageDir, err := os.Readlink(stage.ImageDir)
	if err != nil {
		return fmt.Errorf("image directory: %w", err)
	}
	s, err := newSession(h.Config.RunDir, Session{
		Kind: KindRestore, Criu: criu.Ident, ImageDir: imageDir, LeaveStopped: criu.LeaveStopped,
		Manifest: &manifest,
	})
	if err != nil {
		return err
	}
	defer s.unlock()
	if err := s.step("pre-restore", func() error { return h.startWatcher(s) }); err != nil {
		return errors.Join(err, s.close(OutcomeGone, "refused at pre-restore, nothing was created"))
	}
	return nil
}

// CheckHost plans where an image's GPUs go on this host, and fails if the host
// cannot take the image: another driver, a map that cannot be met, too little
// free memory. It changes nothing.
func (h *Hook) CheckHost(ctx context.Context, driver *cudackpt.Driver, manifest Manifest) (gpumap.Plan, error) {
	if err := driver.Supports(cudackpt.FeatureCheckpoint); err != nil {
		return gpumap.Plan{}, err
	}
	version, err := driver.DriverVersion()
	if err != nil {
		return gpumap.Plan{}, err
	}
	if version != manifest.DriverVersion {
		return gpumap.Plan{}, fmt.Errorf("the image was made with driver %s and this host has %s: the driver's own state is part of the image, so both must be the same version", manifest.DriverVersion, version)
	}
	visible, err := driver.HostGPUs()
	if err != nil {
		return gpumap.Plan{}, err
	}
	plan, err := h.plan(manifest, visible)
	if err != nil {
		return gpumap.Plan{}, err
	}
	need := make(map[cudackpt.UUID]uint64)
	for _, p := range manifest.Processes {
		member := Member{MemoryBytes: p.MemoryBytes, Pairs: plan.Pairs(uuidsOf(p.GPUs))}
		if len(member.Pairs) > 0 {
			if err := driver.Supports(cudackpt.FeatureGPUPairs); err != nil {
				return plan, err
			}
		}
		member.addNeed(need)
	}
	return plan, requireMemory(ctx, driver, need)
}

// plan makes the GPU map for an image's processes from what they will be able
// to see and the user's configuration.
func (h *Hook) plan(manifest Manifest, visible []cudackpt.GPU) (gpumap.Plan, error) {
	lists := make([][]cudackpt.GPU, len(manifest.Processes))
	for i, p := range manifest.Processes {
		lists[i] = p.GPUs
	}
	return gpumap.Make(unionOfGPUs(lists...), visible, h.Config.GPUs.Map, h.Config.GPUs.Unmapped)
}

// noteRoot records the root task at the stages where criu first names it: if
// criu is killed from there on, the watcher knows what to end.
func (h *Hook) noteRoot(_ context.Context, criu *criuutil.Criu, stage Stage) error {
	if stage.InitPID == "" {
		return nil
	}
	s, err := h.sessionOf(KindRestore, criu)
	if err != nil || s == nil {
		return err
	}
	defer s.unlock()
	return s.setRoot(stage)
}

func (s *Session) setRoot(stage Stage) error {
	pid, err := stage.root()
	if err != nil {
		return err
	}
	root, err := criuutil.OpenProcess(pid)
	if err != nil {
		return err
	}
	defer root.Close()
	s.Root, s.Step = &root.Ident, stage.Action
	return s.save()
}

// preResume sends every CUDA process a SIGSTOP. They are in criu's ptrace-stop
// now; the signal takes effect before a single instruction of theirs runs.
func (h *Hook) preResume(_ context.Context, criu *criuutil.Criu, stage Stage) error {
	s, err := h.sessionOf(KindRestore, criu)
	if err == nil && s == nil {
		if _, manifestErr := os.Lstat(filepath.Join(stage.ImageDir, ManifestName)); errors.Is(manifestErr, os.ErrNotExist) {
			return nil
		}
		err = errors.New("the session that pre-restore made for this image is gone from the run directory")
	}
	if err != nil {
		return h.endTree(stage, err)
	}
	defer s.unlock()
	err = s.step("pre-resume", func() error {
		if err := s.setRoot(stage); err != nil {
			return err
		}
		if err := s.matchMembers(); err != nil {
			return err
		}
		for _, member := range s.Members {
			process, err := criuutil.Reopen(member.Ident)
			if err != nil {
				return err
			}
			defer process.Close()
			if err := process.Signal(unix.SIGSTOP); err != nil {
				return err
			}
		}
		return s.save()
	})
	if err != nil {
		return h.fail(s, err)
	}
	return nil
}

// matchMembers finds the processes of the manifest in the tree that criu
// named, by the pid in their innermost pid namespace, which is what the image
// knows them by.
func (s *Session) matchMembers() error {
	pids, err := criuutil.Tree(s.Root.PID)
	if err != nil {
		return err
	}
	byImagePID := make(map[int][]int)
	for _, pid := range pids {
		status, err := criuutil.ReadStatus(pid)
		if errors.Is(err, criuutil.ErrGone) {
			continue
		}
		if err != nil {
			return err
		}
		byImagePID[status.ImagePID()] = append(byImagePID[status.ImagePID()], pid)
	}
	s.Members = nil
	for _, p := range s.Manifest.Processes {
		found := byImagePID[p.PID]
		if len(found) != 1 {
			return fmt.Errorf("process %d (%s) of the manifest is found %d times in the restored tree", p.PID, p.Name, len(found))
		}
		process, err := criuutil.OpenProcess(found[0])
		if err != nil {
			return err
		}
		process.Close()
		s.Members = append(s.Members, Member{
			Ident: process.Ident, ImagePID: p.PID, Name: p.Name, Stopped: p.Stopped, GPUs: p.GPUs, MemoryBytes: p.MemoryBytes,
		})
	}
	return nil
}

// postResume gives the restored processes their GPU state back and lets them
// run. criu ignores how it ends, so on a failure it ends the tree itself.
func (h *Hook) postResume(ctx context.Context, criu *criuutil.Criu, _ Stage) error {
	s, err := h.sessionOf(KindRestore, criu)
	if err != nil || s == nil {
		return err
	}
	defer s.unlock()
	if s.Outcome != "" {
		return nil // pre-resume failed and has ended the tree
	}
	if len(s.Members) == 0 {
		return h.fail(s, errors.New("pre-resume was cut off before it had stopped the processes: they may have run without their GPU state"))
	}
	if err := s.step("post-resume", func() error { return h.resume(ctx, s) }); err != nil {
		return h.fail(s, err)
	}
	return s.close(s.resumedOutcome(), "restored from "+s.ImageDir)
}

func (s *Session) resumedOutcome() Outcome {
	if s.LeaveStopped {
		return OutcomeStopped
	}
	return OutcomeRunning
}

// resume is the driver's side of post-resume.
func (h *Hook) resume(ctx context.Context, s *Session) error {
	ctx, cancel := context.WithTimeout(ctx, h.Config.Restore.Timeout)
	defer cancel()
	driver, err := h.OpenDriver()
	if err != nil {
		return err
	}
	targets, err := openMembers(driver, s.Members)
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
	if err := s.save(); err != nil {
		return err
	}
	return h.bringUp(ctx, driver, s, targets)
}

// mapGPUs makes the plan anew from what the restored processes really see (a
// container may see less than its host) and gives every member its pairs.
func (h *Hook) mapGPUs(driver *cudackpt.Driver, s *Session) error {
	var visible []cudackpt.GPU
	for i, member := range s.Members {
		sees, err := driver.VisibleGPUs(member.PID)
		if err != nil {
			return fmt.Errorf("process %d (%s): %w", member.PID, member.Name, err)
		}
		if i == 0 {
			visible = sees
		} else {
			visible = slices.DeleteFunc(visible, func(gpu cudackpt.GPU) bool { return !slices.Contains(sees, gpu) })
		}
	}
	plan, err := h.plan(*s.Manifest, visible)
	if err != nil {
		return err
	}
	for i := range s.Members {
		s.Members[i].Pairs = plan.Pairs(uuidsOf(s.Members[i].GPUs))
	}
	return nil
}

// finishRestore takes a restore whose criu has ended to a good end: forward if
// criu had completed its part and called post-resume, else the half-restored
// tree is ended.
func (h *Hook) finishRestore(ctx context.Context, s *Session) error {
	if s.Step == "post-resume" {
		err := h.resume(ctx, s)
		if err == nil {
			return s.close(s.resumedOutcome(), "restored from "+s.ImageDir+" by the watcher, after the hook was cut off")
		}
		return h.failQuietly(s, err)
	}
	if s.Root == nil {
		return s.close(OutcomeGone, "criu ended before it created a process; the image is intact")
	}
	root, err := criuutil.Reopen(*s.Root)
	if errors.Is(err, criuutil.ErrGone) {
		return s.close(OutcomeGone, "the restore failed and criu ended its processes; the image is intact")
	}
	if err != nil {
		return err
	}
	root.Close()
	return h.failQuietly(s, errors.New("criu ended in the middle of the restore"))
}

// fail ends a restore that cannot be completed: a job that is half restored
// must not run, and criu will not say that it failed.
func (h *Hook) fail(s *Session, cause error) error {
	return errors.Join(cause, h.failQuietly(s, cause))
}

func (h *Hook) failQuietly(s *Session, cause error) error {
	if h.Config.Restore.OnFailure == config.Leave {
		h.Log.Error("the restore failed; its processes are left stopped for inspection and must not be continued", "root", s.Root, "image", s.ImageDir, "error", cause)
		return s.close(OutcomeLeft, cause.Error())
	}
	h.Log.Error("the restore failed; its processes are ended, the image is intact and can be restored again", "root", s.Root, "image", s.ImageDir, "error", cause)
	if s.Root != nil {
		if err := killTree(*s.Root); err != nil {
			return err
		}
	}
	return s.close(OutcomeKilled, cause.Error())
}

// endTree ends the tree of a restore that has no session.
func (h *Hook) endTree(stage Stage, cause error) error {
	h.Log.Error("the restore failed; its processes are ended, the image is intact", "error", cause)
	pid, err := stage.root()
	if err != nil {
		return errors.Join(cause, err)
	}
	root, err := criuutil.OpenProcess(pid)
	if err != nil {
		return errors.Join(cause, err)
	}
	defer root.Close()
	return errors.Join(cause, killTree(root.Ident))
}

// killTree ends a process and all its descendants.
func killTree(id criuutil.Ident) error {
	root, err := criuutil.Reopen(id)
	if errors.Is(err, criuutil.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	// Held before the first is killed: an orphan would leave the tree.
	pids, err := criuutil.Tree(root.PID)
	if err != nil {
		return err
	}
	processes := []*criuutil.Process{}
	for _, pid := range pids {
		process, err := criuutil.OpenProcess(pid)
		if err == nil {
			processes = append(processes, process)
			defer process.Close()
		}
	}
	for _, process := range processes {
		if err := process.Signal(unix.SIGKILL); err != nil && !errors.Is(err, criuutil.ErrGone) {
			return err
		}
	}
	// Not until it is reaped: at pre-resume criu traces the threads, and reaps
	// none of them before this program has ended.
	deadline := time.Now().Add(time.Minute)
	for _, process := range processes {
		for !process.Exiting() {
			if time.Now().After(deadline) {
				return fmt.Errorf("%v does not end after SIGKILL", process)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

func uuidsOf(gpus []cudackpt.GPU) []cudackpt.UUID {
	uuids := make([]cudackpt.UUID, len(gpus))
	for i, gpu := range gpus {
		uuids[i] = gpu.UUID
	}
	return uuids
}
