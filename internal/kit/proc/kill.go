package proc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// KillTree kills a process, all its descendants, and others wherever they are. It returns when ended holds for
// each of them. They are stopped first, so that no parent sees its child killed and acts on it.
func KillTree(root *Ident, others []Ident, ended func(*Process) bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	seen := slices.Clone(others) // also those whose parent has ended since
	stopped := make(map[Ident]bool)
	for ; ; time.Sleep(time.Millisecond) {
		processes, err := OpenTree(root, seen)
		if err != nil {
			CloseAll(processes)
			return err
		}
		alive := slices.DeleteFunc(slices.Clone(processes), ended)
		stopping, cancelStopping := context.WithTimeout(ctx, 2*time.Second)
		_ = Stop(stopping, alive...) // what does not stop is killed all the same
		cancelStopping()
		// One that was not stopped yet may have forked since this walk, and nobody finds its child once
		// it is dead. So nobody is killed before a walk finds only those that the last one has stopped.
		known := true
		for _, p := range alive {
			if !stopped[p.Ident] {
				known, stopped[p.Ident], seen = false, true, append(seen, p.Ident)
			}
		}
		if known || ctx.Err() != nil {
			err = SignalAll(unix.SIGKILL, alive...)
		}
		CloseAll(processes)
		if err != nil || len(alive) == 0 {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%d processes are still alive after SIGKILL, for example %v", len(alive), alive[0])
		}
	}
}

// OpenTree takes hold of the living processes of a tree, if there is a root, and of others.
func OpenTree(root *Ident, others []Ident) ([]*Process, error) {
	var processes []*Process
	held := make(map[int]bool)
	hold := func(process *Process, err error) {
		switch {
		case err != nil: // it has ended
		case held[process.PID]:
			process.Close()
		default:
			held[process.PID] = true
			processes = append(processes, process)
		}
	}
	for _, id := range others {
		hold(Reopen(id))
	}
	if root == nil {
		return processes, nil
	}
	first, err := Reopen(*root)
	if errors.Is(err, ErrGone) {
		return processes, nil
	}
	if err != nil {
		return processes, err
	}
	pids, err := Tree(first.PID)
	hold(first, nil)
	if err != nil && !errors.Is(err, ErrGone) {
		return processes, err
	}
	for _, pid := range pids {
		hold(Open(pid))
	}
	return processes, nil
}

// CloseAll closes processes, and does not affect them.
func CloseAll(processes []*Process) {
	for _, p := range processes {
		p.Close()
	}
}

// SignalAll sends a signal to those that have not ended.
func SignalAll(signal unix.Signal, processes ...*Process) error {
	var errs []error
	for _, p := range processes {
		if err := p.Signal(signal); err != nil && !errors.Is(err, ErrGone) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
