package watch

import (
	"context"
	"errors"
	"fmt"

	"cucriu/hooks/config"
	"cucriu/internal/engine"
	"cucriu/internal/journal"
	"cucriu/internal/session"
)

// nothingLeft is said of a restore whose criu has ended, with every process that it may have created.
const nothingLeft = "nothing of the job is left, the image is intact"

// finishRestore brings a restore that was cut off to a good end: forward if criu has completed its
// part, else the half-restored tree is ended. Once criu has ended, only the step post-resume tells that
// it had. Otherwise it may have been killed, and whoever saw that may have restored the image
// elsewhere.
func finishRestore(ctx context.Context, s *session.Session) error {
	if done, err := concludeHeld(ctx, s); done || err != nil {
		return err
	}
	criuGone, err := session.Gone(s.Criu)
	if err != nil {
		return err
	}
	if s.Step == journal.StepPostResume || !criuGone && criuIsThrough(&s.Record) {
		if s.By == session.ByRecover && len(s.Members) > 0 { // our environment need not be that of criu's hook
			if _, err := s.Env.OpenDriver(); err != nil {
				return err
			}
		}
		err := engine.CompleteRestore(ctx, s)
		if err == nil {
			message := "restored from " + s.ImageDir + ", after the hook was cut off"
			if s.Hold != nil {
				message = "came from " + s.Hold.Peer + " (migration " + s.Hold.ID + ")"
			}
			return s.Close(s.ResumedOutcome(), message)
		}
		if errors.Is(err, engine.ErrHeld) {
			return nil
		}
		if s.Hold != nil && s.Hold.Decision == journal.DecisionGo {
			return err // there is no other copy any more: nobody gives up on this one
		}
		if ctx.Err() != nil {
			// Somebody gave up waiting, which says nothing about the job.
			return fmt.Errorf("the restore was interrupted, the next cucriu recover goes on with it: %w", err)
		}
		return killOrLeave(s, err)
	}
	if s.Root == nil {
		suspects, err := findRoot(s)
		if err != nil {
			return err
		}
		if len(suspects) > 0 {
			return s.Close(journal.OutcomeGone, fmt.Sprintf("criu ended before it is known to have created a process; the image is intact; "+
				"process %d may be its half-restored root, or another restore's, and was left alone: if no restore is under way, end it", suspects[0]))
		}
	}
	if s.Root == nil {
		return s.Close(journal.OutcomeGone, nothingLeft)
	}
	rootGone, err := session.Gone(*s.Root)
	if err != nil {
		return err
	}
	if rootGone {
		if err := session.KillTree(&s.Record); err != nil {
			return err
		}
		return s.Close(journal.OutcomeGone, nothingLeft)
	}
	return killOrLeave(s, errors.New("criu ended in the middle of the restore"))
}

// KillOrLeaveAndFail ends a restore that cannot be completed, unless the configuration says to leave it
// stopped: a half-restored job must not run, and criu will not say that it failed.
func KillOrLeaveAndFail(s *session.Session, cause error) error {
	if err := killOrLeave(s, cause); err != nil {
		return errors.Join(cause, err)
	}
	if s.Outcome == journal.OutcomeLeft {
		return fmt.Errorf("%w; its processes are left stopped for inspection and must not be continued; the image is intact", cause)
	}
	return fmt.Errorf("%w; its processes were ended, the image is intact", cause)
}

// logFailure logs that a restore failed. Where the caller reports the error, the log does not repeat
// it.
func logFailure(s *session.Session, message string, cause error) {
	log := s.Env.Log.With("root", s.Root, "image", s.ImageDir)
	if s.By == session.ByWatcher || s.By == session.ByRecover {
		log.Error(message, "error", cause)
		return
	}
	log.Info(message)
}

func killOrLeave(s *session.Session, cause error) error {
	if s.Env.Config.Restore.OnFailure == config.LeaveOnFailure {
		logFailure(s, "the restore failed; its processes are left stopped for inspection and must not be continued", cause)
		if err := session.StopTree(&s.Record); err != nil {
			return err
		}
		return s.Close(journal.OutcomeLeft, cause.Error())
	}
	logFailure(s, "the restore failed; its processes are ended, the image is intact and can be restored again", cause)
	if err := session.KillTree(&s.Record); err != nil {
		return err
	}
	return s.Close(journal.OutcomeKilled, cause.Error())
}
