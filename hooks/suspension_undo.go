package hooks

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"cucriu/hooks/preflight"
	"cucriu/internal/journal"
)

// undo brings the processes back to where they were before the dump. What it cannot do now,
// the watcher goes on trying once criu has gone. The journal keeps the cause.
func (s *suspension) undo(cause error) (jobOutcome, error) {
	ctx := context.Background()
	if err := s.releaseTracers(ctx); err != nil {
		return jobOutcome{}, err
	}
	if s.session == nil {
		return jobOutcome{}, s.refreeze(ctx)
	}
	why := causeText(cause)
	message := "the " + string(s.session.Kind) + " was refused, nothing was touched: " + why + "; "
	if len(s.thawed) > 0 {
		message = "the " + string(s.session.Kind) + " was refused, the tree was thawed for a moment: " + why + "; "
	}
	if s.session.Step != "" { // else the watcher did not start
		if err := bringBack(ctx, s.driver, s.session, s.targets); err != nil {
			return jobOutcome{}, fmt.Errorf("the job is not back yet, the watcher goes on trying (cucriu status shows it): %w", err)
		}
		step := string(s.session.Step)
		message = "the " + string(s.session.Kind) + " failed at step " + step + ": " + strings.TrimPrefix(why, step+": ") + "; "
	} else if err := s.refreeze(ctx); err != nil { // while the journal knows of it
		return jobOutcome{}, err
	}
	// Use the directory's own name: criu's descriptor of it may have ended with criu.
	if err := removePages(&s.session.Record); err != nil {
		s.Log.Warn("files of the fast lane are left in the image directory", "error", err)
	}
	f, err := s.session.closeAlive(journal.OutcomeRunning, message, "runs on")
	if err != nil {
		return f, err
	}
	return f, s.refreeze(ctx)
}

// causeText returns why something failed. That nothing was touched, as a refusal says, is for
// the caller to say.
func causeText(err error) string {
	if findings := new(preflight.RefusedError); errors.As(err, &findings) {
		return findings.Findings.Text()
	}
	return err.Error()
}

// releaseTracers puts every thread that was let run or borrowed back into the group-stop.
func (s *suspension) releaseTracers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	var errs []error
	if s.tracer != nil {
		errs = append(errs, s.tracer.Release(ctx))
	}
	for _, t := range s.targets {
		if t.tracer != nil {
			errs = append(errs, t.tracer.Release(ctx))
		}
		errs = append(errs, t.prefault.end(ctx))
		if t.lent != nil {
			errs = append(errs, t.lent.Return(ctx))
		}
	}
	return errors.Join(errs...)
}

// letGo lets go of what the run holds. The processes do not notice.
func (s *suspension) letGo() {
	_ = s.releaseTracers(context.Background())
	closeTargets(s.targets)
	for _, other := range s.others {
		other.Close()
	}
	if s.session != nil {
		s.session.LetGo()
	}
}

// failed undoes a dump or suspend that has failed with err, and adds to err what became of
// the job.
func (s *suspension) failed(err error) error {
	begun := s.session != nil && s.session.Step != ""
	f, undoErr := s.undo(err)
	if findings := new(preflight.RefusedError); errors.As(err, &findings) {
		switch { // the error itself says that nothing was touched
		case begun:
			err = fmt.Errorf("at step %s: %s", s.session.Step, findings.Findings.Text())
		case len(s.thawed) > 0:
			err = fmt.Errorf("the tree was thawed for a moment: %s", findings.Findings.Text())
		}
	}
	switch {
	case undoErr != nil:
		if s.session != nil && s.session.Kind == journal.KindSuspend { // the client or the watcher of a dump will know
			undoErr = &notBackError{undoErr}
		}
		return errors.Join(preflight.AsFailure(err), undoErr)
	case !begun && len(s.thawed) == 0:
		return preflight.AsRefusal(err)
	case !begun:
		return preflight.AsFailure(err)
	}
	err = preflight.AsFailure(err)
	if ended := f.err("runs on"); ended != nil {
		return errors.Join(err, ended, s.oomKilled())
	}
	return fmt.Errorf("%w; %s", err, f.text("runs on"))
}

// oomKilled says whether the out-of-memory killer has struck since [dump.countOOMKills].
func (s *suspension) oomKilled() error {
	for _, counter := range s.oomKills {
		if counter.Kills() > 0 {
			return fmt.Errorf("the out-of-memory killer has struck in the control group %s meanwhile: raise its memory limit, or that of a group above it", counter.Dir)
		}
	}
	return nil
}

// refreeze freezes again what the engine had frozen and we have thawed. Somebody else thaws
// it later.
func (s *suspension) refreeze(ctx context.Context) error {
	return freezeAll(ctx, s.thawed)
}
