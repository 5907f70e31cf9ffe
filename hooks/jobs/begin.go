package jobs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"cucriu/criuutil/proc"
	"cucriu/hooks/jobs/job"
	"cucriu/hooks/jobs/place"
	"cucriu/hooks/jobs/store"
)

// firstPID is where the pids of a job begin. Those below are for the place's own programs.
const firstPID = 1000

// begin brings the job to run: it runs already, is resumed, or is started.
func (s *supervisor) begin(ctx context.Context) error {
	attached, err := s.attach(ctx)
	if err == nil && !attached && s.record.Finished == nil {
		s.fence, err = s.raiseFence(ctx)
	}
	if err != nil {
		return err
	}
	s.saveStaged(ctx)
	s.removeLeftovers()
	if attached {
		return nil
	}
	if s.record.Finished != nil {
		return s.removePlaces()
	}
	all, err := s.store.Checkpoints()
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return s.start(ctx)
	}
	return s.resumeNewest(ctx, all)
}

// removeLeftovers removes what a supervisor that was killed has left. That is not worth a job.
func (s *supervisor) removeLeftovers() {
	left, err := s.store.RemoveLeftovers()
	if err != nil {
		s.say(fmt.Sprintf("not all is removed that an earlier supervisor has left: %v", err))
	}
	for _, path := range left {
		s.say("removed " + path + ", which never became a checkpoint")
	}
}

// attach takes on a job that runs although its supervisor was killed.
func (s *supervisor) attach(ctx context.Context) (bool, error) {
	p, exit, err := s.findPlace()
	if errors.Is(err, place.ErrGone) {
		if exit != nil && exit.Code() == 0 {
			return false, s.finish(*exit)
		}
		return false, nil
	}
	if err != nil {
		return false, err
	}
	s.place = p
	s.notePlace()
	// What the last supervisor had begun is finished, or undone, first.
	if _, err := s.ask(ctx, request{Op: opRecover}); err != nil && p.Alive() {
		return false, fmt.Errorf("the job runs, but what was cut off cannot be finished: %w", err)
	}
	s.root, err = p.OpenRoot()
	switch {
	case err == nil:
		if err := s.attachPaused(ctx); err != nil {
			return false, err
		}
		s.tell(Event{Event: EventAttached, Message: fmt.Sprintf("%s runs, its supervisor had gone: it is under care again", s.record.Name)})
		return true, nil
	case !errors.Is(err, proc.ErrGone):
		return false, err
	}
	if exit, err = p.Exit(); err != nil {
		return false, err
	}
	if exit == nil { // it was being started or restored
		return false, s.endPlace()
	}
	return true, nil // watch tells how it has ended
}

// start starts the job's command in a new place.
func (s *supervisor) start(ctx context.Context) error {
	g, err := s.givenGPUs(s.environment())
	if err != nil {
		return err
	}
	env, notes := chosen{s.Settings, s.NoSettings}.apply(g.renumber(s.environment()), len(g.gpus))
	for _, note := range notes {
		s.say(note)
	}
	err = s.newPlace(ctx, place.Spec{
		Hide:     g.hidden,
		FirstPID: firstPID,
		Start:    &place.Start{Args: s.record.Command, Env: env, Dir: s.record.WorkDir, Output: s.outputPath()},
	})
	if errors.As(err, new(*job.NotStartedError)) {
		return errors.Join(err, s.removePlaces(), s.record.remove(s.Dir))
	}
	if err != nil {
		return err
	}
	s.tell(Event{Event: EventStarted, Message: fmt.Sprintf("%s: %s", s.record.Name, strings.Join(s.record.Command, " "))})
	return s.openRoot()
}

// openRoot opens the job's root process. It is no error if that has ended.
func (s *supervisor) openRoot() (err error) {
	s.root, err = s.place.OpenRoot()
	if errors.Is(err, proc.ErrGone) {
		return nil
	}
	return err
}

// resumeNewest resumes the newest checkpoint that can be restored. What this host refuses would
// be lost by taking an older one, and may go through later or elsewhere.
func (s *supervisor) resumeNewest(ctx context.Context, all []store.Checkpoint) error {
	var errs []error
	for i := len(all) - 1; i >= 0; i-- {
		c := all[i]
		err := s.resume(ctx, c)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		if refused := new(insideError); errors.As(err, &refused) && refused.refused {
			return fmt.Errorf("checkpoint %s of %s is whole, but cannot be restored here: %w", c.Name, age(c), err)
		}
		err = fmt.Errorf("checkpoint %s: %w", c.Name, err)
		errs = append(errs, err)
		next := "and there is none before it"
		if i > 0 {
			next = "trying the one before it"
		}
		s.tell(Event{Event: EventFailed, Checkpoint: c.Name, Message: fmt.Sprintf("checkpoint %s of %s cannot be restored, %s: %v", c.Name, age(c), next, err)})
	}
	return fmt.Errorf("%s is not resumed, and not started anew: %w", s.record.Name, errors.Join(errs...))
}

// resume restores a checkpoint in a new place.
func (s *supervisor) resume(ctx context.Context, c store.Checkpoint) error {
	if c.Err != nil {
		return c.Err
	}
	if err := s.store.Check(ctx, c); err != nil {
		return err
	}
	first, err := freePIDs(c.Dir)
	if err != nil {
		return err
	}
	dir, notes, release, err := s.restorable(c.Dir)
	defer release()
	if err != nil {
		return err
	}
	g, err := s.givenGPUs(s.environment())
	if err != nil {
		return err
	}
	err = s.newPlace(ctx, place.Spec{
		Hide:     g.hidden,
		Clocks:   &place.Clocks{Monotonic: time.Duration(c.Clocks.Monotonic), Boottime: time.Duration(c.Clocks.Boottime)},
		FirstPID: first,
		Root:     c.RootPID,
	})
	if err != nil {
		return err
	}
	a, err := s.ask(ctx, request{Op: opRestore, Images: dir})
	for _, note := range append(notes, a.Notes...) {
		s.say(note)
	}
	if err != nil {
		return errors.Join(err, s.endPlace())
	}
	s.tell(Event{Event: EventResumed, Checkpoint: c.Name, Message: fmt.Sprintf("%s goes on from checkpoint %s of %s", s.record.Name, c.Name, age(c))})
	return s.openRoot()
}

// age says when a checkpoint was made.
func age(c store.Checkpoint) string { return c.CreatedAt.Local().Format(time.DateTime) }
