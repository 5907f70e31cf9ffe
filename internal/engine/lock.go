package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
	"cucriu/internal/inject"
	"cucriu/internal/inspect"
	"cucriu/internal/journal"
	"cucriu/internal/session"
)

// Lock keeps the GPUs idle. It locks all processes or none, because one that is locked keeps the
// others' collectives from ending: see [locking]. The driver waits without end for a thread that does
// not run, so the processes that were stopped before we came run under trace for that moment.
func (s *Suspension) Lock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.PatienceForAll())
	defer cancel()
	s.tracer = inject.NewTracer()
	for _, t := range stoppedBefore(s.Targets) {
		if err := runAllThreads(s.tracer, t); err != nil {
			return err
		}
	}
	if err := s.lockAll(ctx); err != nil {
		return err
	}
	if err := s.measure(ctx); err != nil {
		return err
	}
	return ReleaseThreads(ctx, s.tracer, stoppedBefore(s.Targets))
}

// measure notes how much memory each process holds on each GPU, because its restore will take as much.
// A locked process cannot allocate more.
func (s *Suspension) measure(ctx context.Context) error {
	if len(s.Targets) == 0 { // a migration holds trees without CUDA, too, and then there is no driver
		return nil
	}
	processes := s.processes()
	listed, err := inspect.Measure(ctx, s.Driver, processes)
	if err != nil {
		return err
	}
	for i, t := range s.Targets {
		s.Listed = s.Listed || len(listed[i]) > 0
		t.Member.MemoryBytes = processes[i].MemoryBytes
	}
	s.held = listed
	return nil
}

func (s *Suspension) processes() []inspect.Process {
	processes := make([]inspect.Process, len(s.Targets))
	for i, t := range s.Targets {
		processes[i] = t.Member.Process
	}
	return processes
}

// lookAgain looks once more for what could not be restored, while nothing of the job runs.
func (s *Suspension) lookAgain() error {
	if len(s.Targets) == 0 {
		return nil
	}
	findings, err := inspect.Losses(s.Driver, s.Config.RunDir, s.processes(), s.held)
	if err != nil {
		return err
	}
	if errs := findings.Force(slices.Concat(s.Force, s.Config.Force)).Of(preflight.SeverityError); len(errs) > 0 {
		return fmt.Errorf("it has come since the inspection: %s", errs[0])
	}
	return nil
}

// StatesOf asks for the state of every process. Only a process that runs can answer. If it was stopped
// before we came, its restore thread runs for as long as the answer takes.
func StatesOf(ctx context.Context, targets []*Target, tell func(*Target, cudackpt.State) error) error {
	stopped := stoppedBefore(targets)
	tracer := inject.NewTracer()
	if err := runRestoreThreads(ctx, tracer, stopped); err != nil {
		return errors.Join(err, ReleaseThreads(ctx, tracer, nil))
	}
	err := Parallel(targets, func(t *Target) error {
		state, err := t.CUDA.State(ctx)
		if err != nil {
			return err
		}
		return tell(t, state)
	})
	return errors.Join(err, ReleaseThreads(ctx, tracer, stopped))
}

func WantRunning(t *Target, state cudackpt.State) error {
	return inspect.StateFindings(&t.Member.Process, state).Err()
}

func stoppedBefore(targets []*Target) []*Target {
	return slices.DeleteFunc(slices.Clone(targets), func(t *Target) bool { return !t.Member.Stopped })
}

// UnlockAll unlocks what is locked, by this program or not. It brings the processes up as a session
// that has got no further than its locks.
func (s *Suspension) UnlockAll(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if s.tracer != nil {
		if err := s.tracer.Release(ctx); err != nil {
			return err
		}
	}
	return BringBack(ctx, s.Driver, s.TakeOn(&journal.Session{Record: journal.Record{Kind: journal.KindSuspend, Step: journal.StepLock, Members: s.Members}}, session.ByCommand), s.Targets)
}
