package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"cucriu/cudackpt"
	"cucriu/internal/inspect"
	"cucriu/internal/journal"
	"cucriu/internal/logging"
	"cucriu/internal/proc"
	"cucriu/internal/records"
	"cucriu/internal/rundir"
	"cucriu/internal/session"
)

// work is what the command line asks for, and what is needed to do it.
type work struct {
	what    string
	pid     int
	timeout time.Duration
	pairs   []cudackpt.GPUPair
	force   []string

	env    *session.Env
	driver *cudackpt.Driver
	target cudackpt.Process
	id     proc.Ident
	byCriu bool  // criu's plugin runs this program
	inWay  error // what is to be refused unless the process is to be restored after all
}

// do does what was asked for, and returns what is to be printed.
func (w *work) do(ctx context.Context) (answer string, err error) {
	if err := w.find(); err != nil {
		return "", err
	}
	if w.driver, err = w.env.Host().CheckpointDriver(); err != nil {
		return "", err
	}
	w.target = w.driver.Process(w.pid)
	tid, err := w.target.RestoreThreadID(ctx)
	if err != nil {
		return "", err
	}
	if w.what == getTID {
		return fmt.Sprintln(tid), nil
	}
	if err := w.reachable(tid); err != nil {
		return "", err
	}
	if w.inWay != nil {
		if state, err := w.target.State(ctx); err != nil || state != cudackpt.StateCheckpointed {
			return "", w.inWay
		}
	}
	// What has begun is completed: only a lock is given up, which may take forever.
	whole := context.WithoutCancel(ctx)
	switch w.what {
	case getState:
		state, err := w.target.State(ctx)
		return fmt.Sprintln(state), err
	case lock:
		return "", w.lock(ctx)
	case checkpoint:
		return "", w.checkpoint(whole)
	case restore:
		return "", w.restore(whole)
	case unlock:
		return "", w.target.Unlock(whole)
	}
	return "", w.toggle(ctx)
}

// find looks for the process, and refuses one that cucriu works on. It takes a thread for its
// process: criu's plugin asks for the state by the restore thread.
func (w *work) find() error {
	status, err := proc.ReadStatus(w.pid)
	if errors.Is(err, proc.ErrGone) {
		return errors.New("there is no such process")
	}
	if err == nil {
		w.pid = status.TGID
		w.id, err = proc.IdentOf(w.pid)
	}
	if err != nil {
		return err
	}
	parent, _ := proc.IdentOf(os.Getppid()) // it may be in another pid namespace
	caller, _ := proc.ReadStatus(os.Getppid())
	w.byCriu = caller.Name == "criu"
	if rundir.IsForeign(w.env.Config.RunDir) {
		return nil
	}
	s, err := journal.FindOpen(w.env.Config.RunDir, parent, []journal.Member{{Process: inspect.Process{Ident: w.id}}})
	if err != nil || s == nil {
		return err
	}
	// If criu's plugin is told of no restore thread, it leaves the process alone: beside the hook,
	// which moves the GPU state of the whole tree in criu's pre-dump and post-resume, it would restore and
	// unlock too early and without the hook's map, and ask a stopped process for its state.
	if s.Criu == parent {
		return errors.New("cucriu-hook does that for this criu")
	}
	if w.what == getState || w.what == getTID {
		return nil
	}
	if s.Step == journal.StepLock && (w.what == restore || w.what == toggle) {
		// It came to lock a process that this program had just begun to checkpoint, and cannot undo that.
		found, err := noteKind.Read(w.note(filepath.Join(w.env.Config.RunDir, noteDir)))
		if err == nil && found.Ident == w.id {
			w.inWay = s.Conflict()
			return nil
		}
	}
	return s.Conflict()
}

// reachable refuses a process that would not answer: the driver works through its restore thread, and
// waits forever if that is stopped.
func (w *work) reachable(tid int) error {
	if frozen, _ := proc.FrozenBy(w.pid); len(frozen) > 0 {
		return fmt.Errorf("frozen by control group %s, so the driver cannot reach it: thaw it first", frozen[0].Dir)
	}
	stat, err := proc.ThreadStat(w.pid, tid)
	if err == nil && (stat.State == "T" || stat.State == "t") {
		err = fmt.Errorf("stopped, so the driver cannot reach it: continue it first (kill -CONT %d), or detach its debugger", w.pid)
	}
	return err
}

// judge refuses what the driver would checkpoint and never restore. It does not ask the process, which
// may be stopped but for its restore thread. A refusal at lock leaves the job as it was, and so this is
// where criu's plugin meets it.
func (w *work) judge(ctx context.Context) (inspect.Process, error) {
	seen, err := inspect.One(ctx, w.pid, func() (*cudackpt.Driver, error) { return w.driver, nil })
	if err != nil {
		return inspect.Process{}, err
	}
	if seen.Process == nil {
		return inspect.Process{}, cmp.Or(seen.Findings.Err(), errors.New("it has no CUDA state"))
	}
	processes := []inspect.Process{*seen.Process}
	losses, err := inspect.Named(ctx, w.driver, processes)
	if err != nil {
		return inspect.Process{}, err
	}
	findings := w.env.Judge(append(seen.Findings, losses...))
	if err := findings.Err(); err != nil {
		return inspect.Process{}, err
	}
	for _, f := range findings {
		if f.Forced {
			fmt.Fprintln(logging.Stderr(), "overridden:", f)
		}
	}
	return processes[0], nil
}

// lock locks the process. The driver's call cannot be taken back: after a signal the process is
// unlocked as soon as the driver has answered.
func (w *work) lock(ctx context.Context) error {
	if _, err := w.judge(ctx); err != nil {
		return err
	}
	err := w.target.Lock(ctx, cudackpt.LockOptions{Timeout: w.timeout})
	if interrupted, ok := errors.AsType[*cudackpt.InterruptedError](err); !ok || !interrupted.Started {
		return err
	}
	fmt.Fprintln(logging.Stderr(), "cancelling: the process is unlocked as soon as the driver answers")
	whole := context.WithoutCancel(ctx)
	if err = w.target.Settle(whole); err == nil {
		if locked, _ := w.target.IsLocked(whole); locked {
			err = w.target.Unlock(whole)
		}
	}
	return errors.Join(errors.New("cancelled"), err)
}

// checkpoint checkpoints a locked process, and notes what its restore will take.
func (w *work) checkpoint(ctx context.Context) error {
	process, err := w.judge(ctx)
	if err != nil {
		return err
	}
	if err := w.target.Checkpoint(ctx); err != nil {
		return err
	}
	dir, err := rundir.Make(w.env.Config.RunDir, noteDir)
	if err == nil && process.MemoryBytes != nil {
		err = noteKind.Write(w.note(dir), process)
	}
	if err != nil { // it is checkpointed all the same
		fmt.Fprintln(logging.Stderr(), "the restore will not be checked for enough GPU memory:", err)
	}
	return nil
}

// noteDir is the directory in the run directory where checkpoint leaves what it found.
const noteDir = "cuda-checkpoint"

var noteKind = records.Kind[inspect.Process]{Version: 1}

func (w *work) note(dir string) string { return filepath.Join(dir, strconv.Itoa(w.pid)+".json") }

// restore restores a checkpointed process. It refuses if the GPUs lack the memory, because the driver
// then never restores the process. This is not known of a process that criu has restored, which
// has its image.
func (w *work) restore(ctx context.Context) error {
	note := w.note(filepath.Join(w.env.Config.RunDir, noteDir))
	if found, err := noteKind.Read(note); err == nil && found.Ident == w.id {
		need := make(inspect.MemoryNeed)
		need.Add(found.MemoryBytes, w.pairs)
		if err := need.Require(ctx, w.driver); err != nil {
			return fmt.Errorf("%w; it is still checkpointed", err)
		}
	}
	err := w.target.Restore(ctx, cudackpt.RestoreOptions{Pairs: w.pairs})
	if err == nil {
		_ = os.Remove(note)
	} else if w.byCriu {
		// After a checkpoint that failed, criu's plugin restores and then unlocks, and leaves the job
		// locked for good if the restore fails.
		if locked, _ := w.target.IsLocked(ctx); locked {
			return nil
		}
	}
	return err
}

func (w *work) toggle(ctx context.Context) error {
	whole := context.WithoutCancel(ctx)
	state, err := w.target.State(ctx)
	switch {
	case err != nil:
	case state == cudackpt.StateCheckpointed:
		if err = w.restore(whole); err == nil {
			err = w.target.Unlock(whole)
		}
		if running, _ := w.target.IsRunning(whole); running { // the watcher of a suspend that came too late was quicker
			err = nil
		}
	case state == cudackpt.StateRunning:
		if err = w.lock(ctx); err != nil {
			return err
		}
		if err = w.checkpoint(whole); err != nil {
			err = errors.Join(err, w.target.Unlock(whole))
		}
	default:
		err = fmt.Errorf("it is %v, neither running nor checkpointed", state)
	}
	return err
}
