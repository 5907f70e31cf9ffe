package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/proc"
	"cucriu/internal/session"
)

func (s *Suspension) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.PatienceForAll())
	defer cancel()
	if err := SignalAll(s.Targets, unix.SIGSTOP); err != nil {
		return err
	}
	return s.AwaitStopped(ctx, ProcessesOf(s.Targets))
}

// AwaitStopped waits until processes are stopped. One that waits for its vfork child to execute a
// program does not stop before that. If the child was stopped on the way there, it is let go on for a
// moment.
func (s *Suspension) AwaitStopped(ctx context.Context, processes []*proc.Process) error {
	const patience = 50 * time.Millisecond
	for {
		soon, cancel := context.WithTimeout(ctx, patience)
		err := proc.KeepStopped(soon, processes...)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		for _, child := range s.Others {
			status, err := proc.ReadStatus(child.PID)
			if err != nil || !slices.ContainsFunc(processes, func(p *proc.Process) bool { return p.PID == status.PPID }) {
				continue
			}
			if states, err := proc.ThreadStates(status.PPID); err != nil || !strings.Contains(states, "D") {
				continue
			}
			if err := session.SignalProcesses(unix.SIGCONT, child); err != nil {
				return err
			}
			time.Sleep(time.Millisecond) // there is no event for a stranger's exec
			if err := session.SignalProcesses(unix.SIGSTOP, child); err != nil {
				return err
			}
		}
	}
}
