package hooks

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"cucriu/criuutil"
	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
	"cucriu/internal/gpumap"
	"cucriu/internal/image"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
)

// onPostResume gives the restored processes their GPU state back and lets them run. criu
// ignores its result, so on a failure it ends the tree itself.
func (h *Hook) onPostResume(ctx context.Context, criu *criuutil.Criu, stage Stage) error {
	ctx = context.WithoutCancel(ctx) // criu has done its part: there is no way back but this one
	if err := stage.checkRestored(criu); err != nil {
		return err
	}
	s, err := h.latestSessionOf(journal.KindRestore, criu, true)
	if err != nil {
		return err // the watcher goes on
	}
	if s == nil {
		return h.killForeign(ctx, stage)
	}
	defer s.LetGo()
	if s.Outcome != "" {
		if s.isOf(stage) {
			return h.reportEnded(s)
		}
		return h.killForeign(ctx, stage)
	}
	if len(s.Members) == 0 && len(s.Others) == 0 {
		return h.killOrLeaveAndFail(s, errors.New("pre-resume was cut off before it had stopped the processes: they may have run without their GPU state"))
	}
	if err := h.refuseEnded(ctx, s); err != nil {
		return err
	}
	s.NoteCriu()
	err = s.doStep(journal.StepPostResume, func() error { return h.bringUpRestored(ctx, s) })
	if errors.Is(err, errHeld) {
		h.Log.Info("the job is complete and held", "session", s.Name(), "migration", s.Hold.ID)
		return nil
	}
	if err != nil {
		return h.killOrLeaveAndFail(s, err)
	}
	return s.close(s.ResumedOutcome(), "restored from "+s.ImageDir)
}

// reportEnded says what became of a session that was over before post-resume came to it:
// pre-resume has ended the tree, or somebody else has been faster. criu ignores that, and
// its restore succeeds.
func (h *Hook) reportEnded(s *session) error {
	if s.Outcome == s.ResumedOutcome() {
		h.Log.Info("the restore was completed before post-resume", "session", s.Name(), "message", s.Message)
		return nil
	}
	h.Log.Error("the restore was ended before post-resume, whatever criu says of it", "session", s.Name(), "outcome", s.Outcome, "message", s.Message, "image", s.ImageDir)
	return fmt.Errorf("the restore was ended before post-resume (outcome %s, session %s): %s", s.Outcome, s.Name(), s.Message)
}

// isOf reports whether the session is about the tree that criu names now, and not about one
// that the same criu restored earlier.
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

// killForeign kills a restored tree that has CUDA in it although its image has no
// manifest: its GPU state can only be lost.
func (h *Hook) killForeign(ctx context.Context, stage Stage) error {
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
		if uses, err := preflight.MapsLibcuda(pid); err != nil || !uses {
			continue
		}
		driver, err := h.OpenDriver()
		if err != nil {
			return err
		}
		if _, err := driver.Process(pid).RestoreThreadID(ctx); err == nil {
			return h.killRestored(stage, fmt.Errorf("process %d uses CUDA, but the image has no manifest (%s) that tells how to restore it: was the image directory copied without it?", pid, image.ManifestName))
		}
	}
	return nil
}

// bringUpRestored does the driver's part of post-resume.
func (h *Hook) bringUpRestored(ctx context.Context, s *session) error {
	driver, targets, err := h.openTargets(s)
	if err != nil {
		return err
	}
	defer closeTargets(targets)
	if len(targets) != len(s.Members) {
		return errors.New("a restored CUDA process has ended before its GPU state was back")
	}
	if len(targets) > 0 {
		if err := h.planPairs(driver, s); err != nil {
			return err
		}
	}
	return h.bringUp(ctx, driver, s, targets)
}

// planPairs makes the plan from the GPUs that the processes see now (a container may see less
// than its host), and gives every member its pairs.
func (h *Hook) planPairs(driver *cudackpt.Driver, s *session) error {
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
