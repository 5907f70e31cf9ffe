package checkpoint

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
	"cucriu/hooks"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/records"
	"cucriu/internal/kit/rundir"
)

// Operation is a single call of the driver for one process, as NVIDIA's cuda-checkpoint makes it.
type Operation string

// The operations, as they are named in errors. [SingleToggle] checkpoints a running process, or restores a
// checkpointed one.
const (
	SingleLock       Operation = "lock"
	SingleCheckpoint Operation = "checkpoint"
	SingleRestore    Operation = "restore"
	SingleUnlock     Operation = "unlock"
	SingleToggle     Operation = "toggle"
	SingleState      Operation = "get the state"
	SingleThread     Operation = "get the restore thread"
)

// Single is an operation on one process, without a session and without a stop: no thread of the process may
// synchronize with the GPU while it is checkpointed. What the driver could never undo is refused, as is a process
// that a session is at work on, and a restore without enough free GPU memory. It is called as criu's CUDA plugin
// calls cuda-checkpoint, too.
type Single struct {
	Hook      *hooks.Hook
	Operation Operation
	PID       int
	Timeout   time.Duration      // of a lock; 0 for none
	Pairs     []cudackpt.GPUPair // of a restore; nil for the same GPUs
	Tell      func(text string)  // is told what the caller should know although it is no error
}

// Do does the operation, and returns what it answers: a state or the number of a thread; empty for all others.
func (o Single) Do(ctx context.Context) (string, error) {
	w := &single{Single: o, env: session.Of(o.Hook)}
	return w.do(ctx)
}

// single is a Single at work.
type single struct {
	Single
	env    *session.Env
	driver *cudackpt.Driver
	target cudackpt.Process
	id     proc.Ident
	byCriu bool  // criu's plugin runs this program
	inWay  error // what is to be refused unless the process is to be restored after all
}

// do does what was asked for, and returns what is to be printed.
func (w *single) do(ctx context.Context) (answer string, err error) {
	if err := w.find(); err != nil {
		return "", err
	}
	if w.driver, err = w.env.Host().CheckpointDriver(); err != nil {
		return "", err
	}
	w.target = w.driver.Process(w.PID)
	tid, err := w.target.RestoreThreadID(ctx)
	if err != nil {
		return "", err
	}
	if w.Operation == SingleThread {
		return strconv.Itoa(tid), nil
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
	switch w.Operation {
	case SingleState:
		state, err := w.target.State(ctx)
		return state.String(), err
	case SingleLock:
		return "", w.lock(ctx)
	case SingleCheckpoint:
		return "", w.checkpoint(whole)
	case SingleRestore:
		return "", w.restore(whole)
	case SingleUnlock:
		return "", w.target.Unlock(whole)
	}
	return "", w.toggle(ctx)
}

// find looks for the process, and refuses one that cucriu works on. It takes a thread for its
// process: criu's plugin asks for the state by the restore thread.
func (w *single) find() error {
	status, err := proc.ReadStatus(w.PID)
	if errors.Is(err, proc.ErrGone) {
		return errors.New("there is no such process")
	}
	if err == nil {
		w.PID = status.TGID
		w.id, err = proc.IdentOf(w.PID)
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
	if w.Operation == SingleState || w.Operation == SingleThread {
		return nil
	}
	if s.Step == journal.StepLock && (w.Operation == SingleRestore || w.Operation == SingleToggle) {
		// It came to lock a process that this program had just begun to checkpoint, and cannot undo that.
		found, err := singleKind.Read(w.note(filepath.Join(w.env.Config.RunDir, singlesDir)))
		if err == nil && found.Ident == w.id {
			w.inWay = s.Conflict()
			return nil
		}
	}
	return s.Conflict()
}

// reachable refuses a process that would not answer: the driver works through its restore thread, and
// waits forever if that is stopped.
func (w *single) reachable(tid int) error {
	if frozen, _ := proc.FrozenBy(w.PID); len(frozen) > 0 {
		return fmt.Errorf("frozen by control group %s, so the driver cannot reach it: thaw it first", frozen[0].Dir)
	}
	stat, err := proc.ThreadStat(w.PID, tid)
	if err == nil && (stat.State == "T" || stat.State == "t") {
		err = fmt.Errorf("stopped, so the driver cannot reach it: continue it first (kill -CONT %d), or detach its debugger", w.PID)
	}
	return err
}

// judge refuses what the driver would checkpoint and never restore. It does not ask the process, which
// may be stopped but for its restore thread. A refusal at lock leaves the job as it was, and so this is
// where criu's plugin meets it.
func (w *single) judge(ctx context.Context) (inspect.Process, error) {
	seen, err := inspect.One(ctx, w.PID, func() (*cudackpt.Driver, error) { return w.driver, nil })
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
			w.Tell("overridden: " + f.String())
		}
	}
	return processes[0], nil
}

// lock locks the process. The driver's call cannot be taken back: after a signal the process is
// unlocked as soon as the driver has answered.
func (w *single) lock(ctx context.Context) error {
	if _, err := w.judge(ctx); err != nil {
		return err
	}
	err := w.target.Lock(ctx, cudackpt.LockOptions{Timeout: w.Timeout})
	if interrupted, ok := errors.AsType[*cudackpt.InterruptedError](err); !ok || !interrupted.Started {
		return err
	}
	w.Tell("cancelling: the process is unlocked as soon as the driver answers")
	whole := context.WithoutCancel(ctx)
	if err = w.target.Settle(whole); err == nil {
		if locked, _ := w.target.IsLocked(whole); locked {
			err = w.target.Unlock(whole)
		}
	}
	return errors.Join(errors.New("cancelled"), err)
}

// checkpoint checkpoints a locked process, and notes what its restore will take.
func (w *single) checkpoint(ctx context.Context) error {
	process, err := w.judge(ctx)
	if err != nil {
		return err
	}
	if err := w.target.Checkpoint(ctx); err != nil {
		return err
	}
	dir, err := rundir.Make(w.env.Config.RunDir, singlesDir)
	if err == nil && process.MemoryBytes != nil {
		err = singleKind.Write(w.note(dir), process)
	}
	if err != nil { // it is checkpointed all the same
		w.Tell("the restore will not be checked for enough GPU memory: " + err.Error())
	}
	return nil
}

// singlesDir is the directory in the run directory where checkpoint leaves what it found.
const singlesDir = "cuda-checkpoint"

var singleKind = records.Kind[inspect.Process]{Version: 1}

func (w *single) note(dir string) string { return filepath.Join(dir, strconv.Itoa(w.PID)+".json") }

// restore restores a checkpointed process. It refuses if the GPUs lack the memory, because the driver
// then never restores the process. This is not known of a process that criu has restored, which
// has its image.
func (w *single) restore(ctx context.Context) error {
	note := w.note(filepath.Join(w.env.Config.RunDir, singlesDir))
	if found, err := singleKind.Read(note); err == nil && found.Ident == w.id {
		need := make(inspect.MemoryNeed)
		need.Add(found.MemoryBytes, w.Pairs)
		if err := need.Require(ctx, w.driver, w.env.Promised(nil, nil)); err != nil {
			return fmt.Errorf("%w; it is still checkpointed", err)
		}
	}
	err := w.target.Restore(ctx, cudackpt.RestoreOptions{Pairs: w.Pairs})
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

func (w *single) toggle(ctx context.Context) error {
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
