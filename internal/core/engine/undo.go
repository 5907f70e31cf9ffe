package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"cucriu/hooks/preflight"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
)

// undo rolls the processes back to where they were before the dump. What it cannot do now, the watcher
// keeps trying once criu has gone. The journal keeps the cause.
func (s *Suspension) undo(cause error) (session.JobOutcome, error) {
	ctx := context.Background()
	if err := s.releaseTracers(ctx); err != nil {
		return session.JobOutcome{}, err
	}
	if s.Session == nil {
		return session.JobOutcome{}, s.Refreeze(ctx)
	}
	why := causeText(cause)
	message := "the " + string(s.Session.Kind) + " was refused, nothing was touched: " + why + "; "
	if len(s.Thawed) > 0 {
		message = "the " + string(s.Session.Kind) + " was refused, the tree was thawed for a moment: " + why + "; "
	}
	if s.Session.Step != "" { // else the watcher did not start
		if errors.Is(cause, context.DeadlineExceeded) {
			s.Log.Warn("the job is rolled back, which may wait for the driver", "reason", cause)
		}
		if err := BringBack(ctx, s.Driver, s.Session, s.Targets); err != nil {
			s.Session.NoteStuck(err) // nobody has to wait for the watcher's first try to know
			return session.JobOutcome{}, fmt.Errorf("the job is not recovered yet, the watcher keeps trying (cucriu status shows it): %w", err)
		}
		step := string(s.Session.Step)
		message = "the " + string(s.Session.Kind) + " failed at step " + step + ": " + strings.TrimPrefix(why, step+": ") + "; "
	} else if err := s.Refreeze(ctx); err != nil { // while the journal knows of it
		return session.JobOutcome{}, err
	}
	// Use the directory's own name: criu's descriptor of it may have ended with criu.
	if err := session.RemovePages(&s.Session.Record); err != nil {
		s.Log.Warn("files of the fast lane were left in the image directory", "error", err)
	}
	f, err := s.Session.CloseAlive(journal.OutcomeRunning, message, "keeps running")
	if err != nil {
		return f, err
	}
	return f, s.Refreeze(ctx)
}

// causeText returns why something failed. That nothing was touched, as a refusal says, is for the
// caller to say.
func causeText(err error) string {
	if findings := new(preflight.RefusedError); errors.As(err, &findings) {
		return findings.Findings.Text()
	}
	return err.Error()
}

// releaseTracers puts every thread that was let run or borrowed back into the group-stop.
func (s *Suspension) releaseTracers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ReleaseTimeout)
	defer cancel()
	var errs []error
	if s.tracer != nil {
		errs = append(errs, s.tracer.Release(ctx))
	}
	for _, t := range s.Targets {
		if t.Tracer != nil {
			errs = append(errs, t.Tracer.Release(ctx))
		}
		errs = append(errs, t.prefault.end(ctx))
		if t.Lent != nil {
			errs = append(errs, t.Lent.Return(ctx))
		}
	}
	return errors.Join(errs...)
}

// Close closes what the run holds. The processes do not notice.
func (s *Suspension) Close() {
	_ = s.releaseTracers(context.Background())
	CloseTargets(s.Targets)
	for _, other := range s.Others {
		other.Close()
	}
	if s.Session != nil {
		s.Session.CloseKeeper()
		s.Session.Unlock()
	}
}

// Failed undoes a dump or suspend that has failed with err, and adds to err what became of the job.
func (s *Suspension) Failed(err error) error {
	begun := s.Session != nil && s.Session.Step != ""
	f, undoErr := s.undo(err)
	if findings := new(preflight.RefusedError); errors.As(err, &findings) {
		switch { // the error itself says that nothing was touched
		case begun:
			err = fmt.Errorf("at step %s: %s", s.Session.Step, findings.Findings.Text())
		case len(s.Thawed) > 0:
			err = fmt.Errorf("the tree was thawed for a moment: %s", findings.Findings.Text())
		}
	}
	switch {
	case undoErr != nil:
		if s.Session != nil && s.Session.Kind == journal.KindSuspend { // the client or the watcher of a dump will know
			undoErr = session.NotBack(undoErr)
		}
		return errors.Join(preflight.AsFailure(err), undoErr)
	case !begun && len(s.Thawed) == 0:
		return preflight.AsRefusal(err)
	case !begun:
		return preflight.AsFailure(err)
	}
	err = preflight.AsFailure(err)
	if ended := f.Err("keeps running"); ended != nil {
		return errors.Join(err, ended, s.oomKilled())
	}
	return fmt.Errorf("%w; %s", err, f.Text("keeps running"))
}

// oomKilled says whether the out-of-memory killer has struck since they were counted first.
func (s *Suspension) oomKilled() error {
	for _, counter := range s.OOMKills {
		if counter.Kills() > 0 {
			return fmt.Errorf("the out-of-memory killer has killed processes in the control group %s meanwhile: raise its memory limit, or that of a group above it", counter.Dir)
		}
	}
	return nil
}

// Refreeze freezes again what the engine had frozen and we have thawed. Somebody else thaws it later.
func (s *Suspension) Refreeze(ctx context.Context) error {
	return FreezeAll(ctx, s.Thawed)
}
