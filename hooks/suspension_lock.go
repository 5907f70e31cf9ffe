package hooks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
	"cucriu/internal/inject"
	"cucriu/internal/journal"
)

// lockTargets keeps the GPU idle: no new work is taken, and what runs has ended. It locks
// all processes or none, because one that is locked keeps the others' collectives from
// ending. See [locking] for the order.
//
// Locking takes more of a process than its restore thread: the driver waits for ever for
// one of its other threads, whatever the timeout. So the processes that were stopped before
// we came run under trace for the moment that it takes.
func (s *suspension) lockTargets(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.patienceForAll())
	defer cancel()
	s.tracer = inject.NewTracer()
	for _, t := range stoppedBefore(s.targets) {
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
	return releaseThreads(ctx, s.tracer, stoppedBefore(s.targets))
}

// measure notes how much memory each process holds on each GPU, because its restore will
// take as much. A locked process cannot allocate more.
func (s *suspension) measure(ctx context.Context) error {
	if len(s.targets) == 0 { // a migration holds trees without CUDA, too, and then there is no driver
		return nil
	}
	processes := make([]preflight.Process, len(s.targets))
	for i, t := range s.targets {
		processes[i] = t.member.Process
	}
	listed, err := preflight.Measure(ctx, s.driver, processes)
	if err != nil {
		return err
	}
	for i, t := range s.targets {
		s.listed = s.listed || len(listed[i]) > 0
		t.member.MemoryBytes = processes[i].MemoryBytes
	}
	s.held = listed
	return nil
}

// lookAgain looks once more for what could not be restored, while nothing of the job runs.
func (s *suspension) lookAgain() error {
	if len(s.targets) == 0 {
		return nil
	}
	processes := make([]preflight.Process, len(s.targets))
	for i, t := range s.targets {
		processes[i] = t.member.Process
	}
	findings, err := preflight.LossFindings(s.driver, s.Config.RunDir, processes, s.held, pidsOf(s.targets))
	if err != nil {
		return err
	}
	if errs := findings.Force(slices.Concat(s.Force, s.Config.Force)).Of(preflight.SeverityError); len(errs) > 0 {
		return fmt.Errorf("it has come since the inspection: %s", errs[0])
	}
	return nil
}

// statesOf asks for the state of every process. Only a process that runs can answer. If it
// was stopped before we came, its restore thread runs for as long as the answer takes.
func statesOf(ctx context.Context, targets []*target, tell func(*target, cudackpt.State) error) error {
	stopped := stoppedBefore(targets)
	tracer := inject.NewTracer()
	if err := runRestoreThreads(ctx, tracer, stopped); err != nil {
		return errors.Join(err, releaseThreads(ctx, tracer, nil))
	}
	err := parallel(targets, func(t *target) error {
		state, err := t.cuda.State(ctx)
		if err != nil {
			return err
		}
		return tell(t, state)
	})
	return errors.Join(err, releaseThreads(ctx, tracer, stopped))
}

func wantRunning(t *target, state cudackpt.State) error {
	return preflight.StateFindings(&t.member.Process, state).Err()
}

func stoppedBefore(targets []*target) []*target {
	return slices.DeleteFunc(slices.Clone(targets), func(t *target) bool { return !t.member.Stopped })
}

// unlockAll unlocks what is locked, by this program or not. It brings the processes up as a
// session that has got no further than its locks.
func (s *suspension) unlockAll(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if s.tracer != nil {
		if err := s.tracer.Release(ctx); err != nil {
			return err
		}
	}
	return bringBack(ctx, s.driver, s.takeOn(&journal.Session{Record: journal.Record{Kind: journal.KindSuspend, Step: journal.StepLock, Members: s.members}}, byCommand), s.targets)
}
