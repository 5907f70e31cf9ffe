package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/journal"
	"cucriu/internal/proc"
)

// KillTree kills the root, all its descendants, and the members wherever they are. It stops them first,
// so no parent sees its child killed and acts on it.
func KillTree(r *journal.Record) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// Repeat this until a walk finds nobody: a process that is not stopped yet may fork.
	for ; ; time.Sleep(time.Millisecond) {
		processes, err := OpenTree(r)
		if err != nil {
			return err
		}
		// A process that is exiting counts as ended, even if nobody has reaped it: at pre-resume criu
		// traces the threads, and reaps none of them before this program has ended.
		alive := slices.DeleteFunc(slices.Clone(processes), (*proc.Process).Exiting)
		stopping, cancelStopping := context.WithTimeout(ctx, 2*time.Second)
		_ = proc.Stop(stopping, alive...) // what does not stop is killed all the same
		cancelStopping()
		err = SignalProcesses(unix.SIGKILL, alive...)
		CloseAll(processes)
		if err != nil || len(alive) == 0 {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%d processes do not end after SIGKILL", len(alive))
		}
	}
}

func StopTree(r *journal.Record) error {
	processes, err := OpenTree(r)
	if err != nil {
		return err
	}
	defer CloseAll(processes)
	return SignalProcesses(unix.SIGSTOP, processes...)
}

// StopMembers sends SIGSTOP to the processes that may be checkpointed.
func StopMembers(r *journal.Record) error {
	if !r.MayBeCheckpointed() {
		return nil
	}
	return SignalKnown(unix.SIGSTOP, journal.IdentsOf(r.Members)...)
}

// OpenTree takes hold of the living processes of the session.
func OpenTree(r *journal.Record) ([]*proc.Process, error) {
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
	for _, id := range slices.Concat(journal.IdentsOf(r.Members), r.Tree, r.Others) {
		hold(proc.Reopen(id))
	}
	if r.Root == nil {
		return processes, nil
	}
	root, err := proc.Reopen(*r.Root)
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

func CloseAll(processes []*proc.Process) {
	for _, p := range processes {
		p.Close()
	}
}

// SignalProcesses sends a signal to those that have not ended.
func SignalProcesses(signal unix.Signal, processes ...*proc.Process) error {
	var errs []error
	for _, p := range processes {
		if err := p.Signal(signal); err != nil && !errors.Is(err, proc.ErrGone) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// SignalKnown sends a signal to those that have not ended. A new process that has got one of their pids
// does not get it.
func SignalKnown(signal unix.Signal, known ...proc.Ident) error {
	for _, id := range known {
		process, err := proc.Reopen(id)
		if err == nil {
			err = errors.Join(process.Signal(signal), process.Close())
		}
		if err != nil && !errors.Is(err, proc.ErrGone) {
			return err
		}
	}
	return nil
}

// Gone reports whether a process has ended. Its error may be [proc.ErrElsewhere].
func Gone(id proc.Ident) (bool, error) {
	process, err := proc.Reopen(id)
	if errors.Is(err, proc.ErrGone) {
		return true, nil
	}
	if err == nil {
		process.Close()
	}
	return false, err
}

// NoteTree adds the processes below the root to the record's tree, and reports whether any was new.
func NoteTree(r *journal.Record) bool {
	process, err := proc.Reopen(*r.Root)
	if err != nil {
		return false
	}
	defer process.Close()
	pids, err := proc.Tree(r.Root.PID)
	if err != nil {
		return false
	}
	before := len(r.Tree)
	for _, pid := range pids {
		if id, err := proc.IdentOf(pid); err == nil && !slices.Contains(r.Tree, id) {
			r.Tree = append(r.Tree, id)
		}
	}
	return len(r.Tree) > before
}
