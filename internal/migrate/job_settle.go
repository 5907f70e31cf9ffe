package migrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"cucriu/hooks"
	"cucriu/internal/jobs"
	"cucriu/internal/migrate/commit"
)

// SettledJob is a move of a long job that was brought to an end.
type SettledJob struct {
	Dir     string `json:"dir"`
	ID      string `json:"id"`
	Host    string `json:"host"`
	Message string `json:"message"`
}

// RecoverJobs brings the moves of this host's long jobs to an end that were cut off: it tells the
// destinations what was decided here, and removes what was not complete.
func RecoverJobs(ctx context.Context, hook *hooks.Hook) ([]SettledJob, error) {
	hook = hook.Filled()
	all, err := jobs.Locals(hook.Config.RunDir)
	if err != nil {
		return nil, err
	}
	settled := []SettledJob{}
	var errs []error
	for _, job := range all {
		if ctx.Err() != nil {
			break
		}
		message, m, err := recoverJob(hook, job)
		if err != nil {
			errs = append(errs, fmt.Errorf("move %s of %s: %w", m.ID, job.Name, err))
		} else if message != "" {
			settled = append(settled, SettledJob{Dir: job.Dir, ID: m.ID, Host: m.Peer, Message: message})
		}
	}
	return settled, errors.Join(errs...)
}

// supervisorPatience is how long the lock of a move is waited for: a supervisor whose move was cut
// off has it for a moment.
const supervisorPatience = 2 * time.Second

// recoverJob brings one move to an end. The message is empty if there was nothing to do.
func recoverJob(hook *hooks.Hook, job jobs.Local) (message string, m jobs.Move, err error) {
	if m, err = jobs.ReadMove(job.Dir); err != nil || m.State == jobs.MoveNone || m.State == jobs.MoveLeft && m.Known {
		return "", m, err
	}
	waiting, cancel := context.WithTimeout(context.Background(), supervisorPatience)
	defer cancel()
	lock, err := jobs.LockMove(waiting, job.Dir)
	if errors.Is(err, jobs.ErrMoving) {
		return "", m, nil // under way
	}
	if err != nil {
		return "", m, err
	}
	defer lock.Free()
	if m, err = jobs.ReadMove(job.Dir); err != nil {
		return "", m, err
	}
	a := arrival{hook, job.Dir, m.ID}
	switch m.State {
	case jobs.MoveLeaving, jobs.MoveStays, jobs.MoveLeft:
		if m.Known {
			return "", m, nil
		}
		message, err = tellDestination(hook, job, m)
		return message, m, err
	case jobs.MoveArriving:
		_, _, err = a.decide(commit.Recover)
		return "what had arrived of " + job.Name + " was removed: it goes on at " + m.Peer, m, err
	case jobs.MovePromised:
		return "", m, &jobs.ElsewhereError{Dir: job.Dir, Move: m}
	case jobs.MoveArrived:
		if job.PID != 0 || job.State == jobs.StateUnattended {
			return "", m, nil
		}
		ran, err := jobs.Resumed(job.Dir, m.Events)
		if err != nil || ran {
			return "", m, err
		}
		if m, err = a.letRun(context.Background(), m); err == nil && m.Returned != "" {
			return job.Name + " could not be resumed here, and is given back; run cucriu recover at " + m.Peer, m, nil
		}
		return job.Name + " runs here", m, err
	}
	return "", m, nil
}

// tellDestination tells the destination of a move what was decided here.
func tellDestination(hook *hooks.Hook, job jobs.Local, m jobs.Move) (string, error) {
	if len(m.RSH) == 0 {
		return "", errors.New("its record names no remote shell")
	}
	s := newJobSource(hook, job, Options{Host: m.Peer, RSH: m.RSH, Remote: m.Remote})
	s.result.ID, s.recovering = m.ID, true
	defer s.close()
	left := m.State == jobs.MoveLeft
	if err := s.on(commit.Recover); err != nil {
		return "", err
	}
	switch {
	case s.returned != "":
		return fmt.Sprintf("%s could not be resumed at %s (%s): the same cucriu run here goes on with it", job.Name, m.Peer, s.returned), nil
	case left:
		return fmt.Sprintf("%s runs at %s", job.Name, m.Peer), nil
	}
	return fmt.Sprintf("%s stays here, and %s knows it", job.Name, m.Peer), nil
}

// SettleJob decides about the move of a long job in place of a host that cannot be asked: take lets
// the job run here, otherwise what is here of it is removed. The move is named by its ID or by the
// job's directory. It relies on what the user knows: see [commit.WhenToTake] and
// [commit.WhenToDrop].
func SettleJob(hook *hooks.Hook, name string, take bool) (message string, err error) {
	hook = hook.Filled()
	dir, m, err := findMove(hook, name)
	if err != nil {
		return "", err
	}
	lock, err := jobs.TryLockMove(dir)
	if err != nil {
		return "", err
	}
	defer lock.Free()
	if m, err = jobs.ReadMove(dir); err != nil {
		return "", err
	}
	a := arrival{hook, dir, m.ID}
	switch {
	case m.State == jobs.MoveLeft && take:
		return "the same cucriu run goes on with the job here", jobs.RemoveMove(dir)
	case m.State == jobs.MovePromised && take:
		if _, m, err = a.decide(commit.Take); err != nil {
			return "", err
		}
		if why := startJob(context.Background(), hook, dir, m); why != nil {
			return "", fmt.Errorf("%w: the job belongs here now, and does not run: %w; the same cucriu run tries again", hooks.ErrNotBack, why)
		}
		return "the job runs here", nil
	case m.State == jobs.MovePromised:
		_, _, err = a.decide(commit.Drop)
		return "what had arrived was removed", err
	case m.State == jobs.MoveArriving && !take:
		_, _, err = a.decide(commit.Recover)
		return "what had arrived was removed", err
	}
	return "", fmt.Errorf("move %s of the job in %s is in state %q: there is nothing to decide", m.ID, dir, m.State)
}

// findMove finds the record of a move by its ID or the directory of the job.
func findMove(hook *hooks.Hook, name string) (dir string, m jobs.Move, err error) {
	if filepath.IsAbs(name) {
		m, err = jobs.ReadMove(name)
		if err == nil && m.State == jobs.MoveNone {
			err = fmt.Errorf("%s has no record of a move: %w", name, os.ErrNotExist)
		}
		return name, m, err
	}
	all, err := jobs.Locals(hook.Config.RunDir)
	if err != nil {
		return "", m, err
	}
	for _, job := range all {
		if m, err := jobs.ReadMove(job.Dir); err == nil && m.ID == name {
			return job.Dir, m, nil
		}
	}
	return "", m, fmt.Errorf("no move %.80q is known on this host; after a reboot, name the job's directory: %w", name, os.ErrNotExist)
}
