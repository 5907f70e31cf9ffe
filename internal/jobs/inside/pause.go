package inside

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/records"
)

var pausedKind = records.Kind[pausedRecord]{Name: "paused.json", Version: 1} // in the run directory of a sandbox

// pausedRecord says which processes of the job a pause has stopped, beside those that use CUDA.
// It is there before the job is touched, and goes when the job runs again.
type pausedRecord struct {
	Stopped []proc.Ident `json:"stopped"`
}

// IsPaused reports whether the job of a sandbox is paused, or whether a pause of it was cut off.
func IsPaused(runDir string) (bool, error) {
	_, err := os.Stat(pausedKind.Path(runDir))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// pause stops all processes of the job, and frees their GPUs. It makes a pause
// whole that was cut off.
func pause(ctx context.Context, hook *hooks.Hook, root int) error {
	runDir := hook.Config.RunDir
	r, err := pausedKind.ReadOr(runDir, pausedRecord{})
	if err != nil {
		return err
	}
	if err := pausedKind.Write(runDir, r); err != nil {
		return err
	}
	err = suspendTree(ctx, hook, root)
	if err == nil {
		err = r.stopTree(ctx, runDir, root)
	}
	if err != nil {
		return errors.Join(err, unpause(context.WithoutCancel(ctx), hook))
	}
	return nil
}

// suspendTree suspends the processes of the job that use CUDA and are not suspended.
func suspendTree(ctx context.Context, hook *hooks.Hook, root int) error {
	tree, err := proc.Tree(root)
	if err != nil {
		return err
	}
	processes, err := checkpoint.Processes(ctx, hook)
	if err != nil {
		return err
	}
	done, err := suspended(hook)
	if err != nil {
		return err
	}
	var pids []int
	for _, p := range processes {
		if slices.Contains(tree, p.PID) && !slices.Contains(done, p.PID) {
			pids = append(pids, p.PID)
		}
	}
	if len(pids) == 0 {
		return nil
	}
	_, err = checkpoint.Suspend(ctx, hook, pids)
	return err
}

// suspended returns the processes of the sandbox that are suspended and live.
func suspended(hook *hooks.Hook) ([]int, error) {
	sessions, err := checkpoint.Sessions(hook.Config.RunDir)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, s := range sessions {
		if s.Kind == checkpoint.KindSuspend && s.Outcome == "" {
			for _, pid := range s.PIDs() { // those of a job that is paused are not reaped
				if status, err := proc.ReadStatus(pid); err == nil && !status.Ended {
					pids = append(pids, pid)
				}
			}
		}
	}
	return pids, nil
}

// stopTree stops what of the job runs still, until all of it is stopped. Somebody else may have
// stopped processes before: those are not noted, and stay so.
func (r *pausedRecord) stopTree(ctx context.Context, runDir string, root int) error {
	for {
		running, err := runningIn(root)
		if err != nil || len(running) == 0 {
			return err
		}
		for _, p := range running {
			if !slices.Contains(r.Stopped, p.Ident) {
				r.Stopped = append(r.Stopped, p.Ident)
			}
		}
		err = pausedKind.Write(runDir, *r)
		if err == nil {
			err = proc.Stop(ctx, running...)
		}
		for _, p := range running {
			p.Close()
		}
		if err != nil {
			return err
		}
	}
}

// runningIn opens the processes of a tree that are not stopped.
func runningIn(root int) (running []*proc.Process, err error) {
	tree, err := proc.Tree(root)
	if err != nil {
		return nil, err
	}
	for _, pid := range tree {
		if stopped, err := proc.Stopped(pid); err == nil && stopped {
			continue
		}
		p, err := proc.Open(pid)
		if errors.Is(err, proc.ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		running = append(running, p)
	}
	return running, nil
}

// unpause resumes the job after a pause.
func unpause(ctx context.Context, hook *hooks.Hook) error {
	runDir := hook.Config.RunDir
	pids, err := suspended(hook)
	if err != nil {
		return err
	}
	if len(pids) > 0 {
		_, err := checkpoint.Resume(ctx, hook, pids, false)
		if errors.Is(err, hooks.ErrEnded) { // one was killed meanwhile: the others are told when they go on
			if left, leftErr := suspended(hook); leftErr == nil && len(left) == 0 {
				err = nil
			}
		}
		if err != nil {
			return err
		}
	}
	r, err := pausedKind.ReadOr(runDir, pausedRecord{})
	if err != nil {
		return err
	}
	for _, id := range r.Stopped {
		p, err := proc.Reopen(id)
		if errors.Is(err, proc.ErrGone) {
			continue
		}
		if err == nil {
			err = errors.Join(p.Signal(unix.SIGCONT), p.Close())
		}
		if err != nil && !errors.Is(err, proc.ErrGone) {
			return fmt.Errorf("continue %v: %w", id, err)
		}
	}
	return pausedKind.Remove(runDir)
}
