package stages

import (
	"context"
	"errors"
	"fmt"

	"cucriu/cudackpt"
	"cucriu/internal/core/engine"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/core/watch"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
)

// postResume gives the restored processes their GPU state back and lets them run. criu ignores its
// result, so on a failure it ends the tree itself.
func (c *call) postResume(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx) // criu has done its part: there is no way back but this one
	if err := c.checkRestored(); err != nil {
		return err
	}
	s, err := session.LatestSessionOf(c.Env, journal.KindRestore, proc.Ident(c.criu.Ident), c.stage.Action, true)
	if err != nil {
		return err // the watcher goes on
	}
	if s == nil {
		return c.killForeign(ctx)
	}
	defer s.Unlock()
	if s.Outcome != "" {
		if isOf(&s.Record, c.stage) {
			return reportEnded(s)
		}
		return c.killForeign(ctx)
	}
	if len(s.Members) == 0 && len(s.Others) == 0 {
		return watch.KillOrLeaveAndFail(s, errors.New("pre-resume was interrupted before it had stopped the processes: they may have run without their GPU state"))
	}
	if err := watch.EndIfRefused(ctx, s); err != nil {
		return err
	}
	s.NoteCriu()
	err = s.DoStep(journal.StepPostResume, func() error { return engine.CompleteRestore(ctx, s) })
	if errors.Is(err, engine.ErrHeld) {
		c.Log.Info("the job is complete and held", "session", s.Name(), "migration", s.Hold.ID)
		return nil
	}
	if err != nil {
		return watch.KillOrLeaveAndFail(s, err)
	}
	return s.Close(s.ResumedOutcome(), "restored from "+s.ImageDir)
}

// reportEnded says what became of a session that was over before post-resume came to it. criu ignores
// that, and its restore succeeds.
func reportEnded(s *session.Session) error {
	if s.Outcome == s.ResumedOutcome() {
		s.Env.Log.Info("the restore was completed before post-resume", "session", s.Name(), "message", s.Message)
		return nil
	}
	s.Env.Log.Error("the restore was ended before post-resume, whatever criu reports", "session", s.Name(), "outcome", s.Outcome, "message", s.Message, "image", s.ImageDir)
	return fmt.Errorf("the restore was ended before post-resume (outcome %s, session %s): %s", s.Outcome, s.Name(), s.Message)
}

// isOf reports whether the session is about the tree that criu names now, and not about one that the
// same criu restored earlier.
func isOf(s *journal.Record, stage Stage) bool {
	pid, err := stage.root()
	if err != nil || s.Root == nil || s.Root.PID != pid {
		return false
	}
	_, err = session.Gone(*s.Root)
	return err == nil
}

// killForeign kills a restored tree that has CUDA in it although its image has no manifest: its GPU
// state can only be lost, unless another program has restored it (criu's CUDA plugin).
func (c *call) killForeign(ctx context.Context) error {
	root, err := c.stage.root()
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
		if uses, err := inventory.MapsLibcuda(pid); err != nil || !uses {
			continue
		}
		driver, err := c.OpenDriver()
		if err != nil {
			return err
		}
		process := driver.Process(pid)
		if state, err := process.State(ctx); err == nil && state == cudackpt.StateRunning {
			c.Log.Warn("the image was not made with cucriu, and its GPU state was restored by another program", "pid", pid)
			continue
		}
		if _, err := process.RestoreThreadID(ctx); err == nil {
			return c.killRestored(fmt.Errorf("%s is missing, and process %d uses CUDA: the image is incomplete: copy the image again from its source, or restore another one", imagedir.ManifestName, pid))
		}
	}
	return nil
}
