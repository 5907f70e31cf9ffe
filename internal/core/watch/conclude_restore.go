package watch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cucriu/criuutil"
	"cucriu/hooks/config"
	"cucriu/internal/core/engine"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/proc"
)

// nothingLeft is said of a restore whose criu has ended, with every process that it may have created.
const nothingLeft = "this restore has left nothing running, and the image is unchanged"

// TreeEnded is said of a restore whose processes we have killed.
const TreeEnded = "the half-restored processes were ended; the image was not changed"

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
			message := "restored from " + s.ImageDir + ", after the hook was interrupted"
			if s.Hold != nil {
				message = "came from " + s.Hold.Peer + " (migration " + s.Hold.ID + ")"
			}
			return s.Close(s.ResumedOutcome(), message)
		}
		if errors.Is(err, engine.ErrHeld) {
			return nil
		}
		if s.Hold != nil && s.Hold.Decision == journal.RunHere {
			return err // there is no other copy any more: nobody gives up on this one
		}
		if ctx.Err() != nil {
			// Somebody gave up waiting, which says nothing about the job.
			return fmt.Errorf("the restore was interrupted; cucriu recover continues it: %w", err)
		}
		return killOrLeave(s, err)
	}
	if s.Root == nil {
		suspects, err := findRoot(s)
		if err != nil {
			return err
		}
		if len(suspects) > 0 {
			return s.Close(journal.OutcomeGone, fmt.Sprintf("criu ended before it is known to have created a process; the image is unchanged; "+
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
		return fmt.Errorf("%w; its processes are left stopped for inspection and must not be continued; the image is unchanged", cause)
	}
	return fmt.Errorf("%w; %s", cause, TreeEnded)
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
	logFailure(s, "the restore failed; "+TreeEnded, cause)
	if err := session.KillTree(&s.Record); err != nil {
		return err
	}
	return s.Close(journal.OutcomeKilled, cause.Error())
}

// criu names the root task to its action scripts only once it exists. If criu is killed before that,
// the tasks wait for it and hold their pids, and nobody but us ends them. We must then be certain who
// they are: many processes may execute criu and have the pid 1, and in the end they execute the job's
// program. So pre-restore notes memory that only they share with criu.

// awaitRoot waits until the root task of a restore exists, as a child of criu or of the process that
// has asked for that (RootParent). It returns nil if criu ends before that.
func awaitRoot(ctx context.Context, s *journal.Record, criu *proc.Process) *proc.Ident {
	parent := criu.PID
	if s.RootParent != nil {
		parent = s.RootParent.PID
	}
	for criu.Alive() && ctx.Err() == nil {
		children, err := proc.Children(parent)
		if err != nil {
			return nil
		}
		for _, pid := range children {
			child, err := proc.ReadStatus(pid)
			if err != nil || child.PPID != parent || child.ImagePID() != s.Manifest.RootPID {
				continue
			}
			root := createdByCriu(s, pid)
			if root != nil && (parent == criu.PID || criuutil.HasMark(pid, s.Mark)) { // else it is another child of that process
				return root
			}
		}
		time.Sleep(2 * time.Millisecond) // there is no event for a stranger's fork
	}
	return nil
}

// createdByCriu returns the identity of a process, nil if it is older than criu.
func createdByCriu(s *journal.Record, pid int) *proc.Ident {
	id, err := proc.IdentOf(pid)
	if err != nil || id.StartTime < s.Criu.StartTime {
		return nil
	}
	return &id
}

// orphanedRoot finds the root task that a killed criu has left behind before anybody saw it. The
// suspects might be it or another restore's. There are none if criu was marked.
func orphanedRoot(s *journal.Record) (root *proc.Ident, suspects []int, err error) {
	pids, err := proc.All()
	if err != nil {
		return nil, nil, err
	}
	for _, pid := range pids {
		status, err := proc.ReadStatus(pid)
		if err != nil || status.ImagePID() != s.Manifest.RootPID {
			continue
		}
		created := createdByCriu(s, pid)
		if created == nil {
			continue
		}
		if criuutil.HasMark(pid, s.Mark) {
			return created, nil, nil
		}
		if len(s.Mark) == 0 && s.CriuExe != "" && Executable(pid) == s.CriuExe && Executable(status.PPID) != s.CriuExe {
			suspects = append(suspects, pid)
		}
	}
	return nil, suspects, nil
}

// findRoot notes the root task that a killed criu has left behind, and returns the suspects.
func findRoot(s *session.Session) (suspects []int, err error) {
	s.Root, suspects, err = orphanedRoot(&s.Record)
	if len(suspects) > 0 {
		s.Env.Log.Warn("a process may be what this restore's criu has left behind, or another restore's: it is left alone", "session", s.Name(), "processes", suspects)
	}
	return suspects, err
}
