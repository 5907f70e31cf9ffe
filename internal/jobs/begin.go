package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/job"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/proc"
)

// firstPID is where the pids of a job begin. Those below are for the sandbox's own programs.
const firstPID = 1000

// begin brings the job to run: it runs already, is resumed, or is started. told ends, at the latest
// with ctx, when a job that is not here yet is not to come any more.
func (s *supervisor) begin(ctx, told context.Context) error {
	attached, err := s.attach(ctx)
	if err == nil && !attached && s.record.Finished == nil {
		s.fence, err = s.raiseFence(told)
	}
	if err != nil {
		return err
	}
	saved, err := s.saveStaged(told)
	if err == nil {
		s.removeLeftovers(saved)
	} else if !attached {
		return fmt.Errorf("%w: make room, and give this command again", err)
	} else {
		s.tell(Event{Event: EventFailed, Message: err.Error()})
	}
	if attached {
		return nil
	}
	if s.record.Finished != nil {
		return s.removeSandboxes()
	}
	if err := s.undoFiles(); err != nil {
		return err
	}
	all, err := s.store.Checkpoints()
	if err != nil {
		return err
	}
	if told.Err() != nil {
		return context.Cause(told)
	}
	if len(all) == 0 && s.record.Adopted {
		return s.adopt(ctx)
	}
	if len(all) == 0 {
		return s.start(ctx)
	}
	return s.resumeNewest(told, all)
}

// removeLeftovers removes what a supervisor that was killed has left. That is not worth a job.
// saved are the staging directories whose images became checkpoints.
func (s *supervisor) removeLeftovers(saved []string) {
	left, err := s.store.RemoveLeftovers()
	if err != nil {
		s.say(fmt.Sprintf("not all is removed that an earlier supervisor has left: %v", err))
	}
	for _, path := range left {
		if slices.Contains(saved, path) {
			continue
		}
		s.say("removed " + path + ", which never became a checkpoint")
	}
}

// attach takes on a job that runs although its supervisor was killed.
func (s *supervisor) attach(ctx context.Context) (bool, error) {
	p, exit, err := s.findSandbox()
	if errors.Is(err, sandbox.ErrGone) {
		if exit != nil && exit.Code() == 0 {
			return false, s.finish(*exit)
		}
		return false, nil
	}
	if err != nil {
		return false, err
	}
	s.sandbox = p
	s.noteSandbox()
	if p.HasRun() {
		s.forgetUndo()
	}
	if err := p.Keep(ctx); err != nil {
		return false, err
	}
	if of := s.store.Previous(); of.BootID != "" && !of.IsOfThisBoot() {
		s.say(fmt.Sprintf("%s was taken over by %v: what runs here is older, and is ended", s.record.Name, of))
		return false, s.endSandbox()
	}
	// What the last supervisor had begun is finished, or undone, first.
	over := killPatiently(ctx, p)
	_, err = s.ask(ctx, request{Op: opRecover})
	over()
	if err != nil && p.Alive() {
		return false, fmt.Errorf("the job runs, but what was cut off cannot be finished: %w", err)
	}
	s.root, err = p.OpenRoot()
	switch {
	case err == nil && !p.HasRun(): // it was being restored
		return false, errors.Join(s.root.Close(), s.endSandbox())
	case err == nil:
		s.setRunning()
		if err := s.attachPaused(ctx); err != nil {
			return false, err
		}
		s.noteRunning(time.Time{})
		s.tell(Event{Event: EventAttached, Message: fmt.Sprintf("%s runs, its supervisor had gone: it is under care again", s.record.Name)})
		return true, nil
	case !errors.Is(err, proc.ErrGone):
		return false, err
	}
	if exit, err = p.Exit(); err != nil {
		return false, err
	}
	switch {
	case exit == nil || !p.HasRun(): // it was being started or restored
		return false, s.endSandbox()
	case p.IsLeaving() && exit.Code() == 0: // at its scheduler's signal
		return false, s.endSandbox()
	case p.IsLeaving() && exit.Status.Signaled() && exit.Status.Signal() == unix.SIGKILL: // by its last dump
		return false, s.endSandbox()
	}
	return true, nil // watch tells how it has ended
}

// start starts the job's command in a new sandbox.
func (s *supervisor) start(ctx context.Context) error {
	g, err := s.givenGPUs(s.environment())
	if err != nil {
		return err
	}
	env, notes := chosen{s.Settings, s.NoSettings}.apply(g.renumber(s.environment()), len(g.gpus))
	for _, note := range notes {
		s.say(note)
	}
	if s.record.Input == inputFile {
		return errors.New("the job reads a file that was the standard input of an earlier version of cucriu run (--stdin), and this version cannot start it so: start it anew in another --dir")
	}
	start := &sandbox.Start{Args: s.record.Command, Env: env, Dir: s.record.WorkDir, Output: s.outputPath()}
	if s.user != nil {
		start.Env, start.User = s.user.environment(env), &s.user.credential
	}
	spec := sandbox.Spec{Hide: g.hidden, Params: s.driverParams(), FirstPID: firstPID, Start: start, Terminal: s.terminal()}
	err = s.newSandbox(ctx, spec)
	if errors.As(err, new(*job.NotStartedError)) {
		return errors.Join(err, s.removeSandboxes(), s.record.remove(s.Dir))
	}
	if err != nil {
		return err
	}
	s.tell(Event{Event: EventStarted, Message: fmt.Sprintf("%s: %s", s.record.Name, strings.Join(s.record.Command, " "))})
	return s.openRoot()
}

// setRunning records that the job runs. If a full disk prevents that, a job that ends while it has
// no supervisor goes on from its newest checkpoint.
func (s *supervisor) setRunning() {
	if err := s.sandbox.SetRunning(); err != nil {
		s.say(fmt.Sprintf("the sandbox's record cannot be written: %v", err))
	}
	s.forgetUndo()
}

// openRoot opens the job's root process. It is no error if that has ended.
func (s *supervisor) openRoot() (err error) {
	s.root, err = s.sandbox.OpenRoot()
	if errors.Is(err, proc.ErrGone) {
		return nil
	}
	return err
}
