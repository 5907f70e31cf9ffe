package hooks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/proc"
)

// killTree kills the root, all its descendants, and the members wherever they are. It stops
// them first, so no parent sees its child killed and acts on it.
func (s *session) killTree() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// Repeat this until a walk finds nobody: a process that is not stopped yet may fork.
	for ; ; time.Sleep(time.Millisecond) {
		processes, err := s.openTree()
		if err != nil {
			return err
		}
		// A process that is exiting counts as ended, even if nobody has reaped it: at
		// pre-resume criu traces the threads, and reaps none of them before this program
		// has ended.
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
	processes, err := s.openTree()
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

// openTree takes hold of the living processes of the session.
func (s *session) openTree() ([]*proc.Process, error) {
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
