package migrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/quote"
	"cucriu/internal/migrate/commit"
)

// Recover brings migrations that were cut off to an end: it tells the destinations what was decided
// here, and removes what is not complete. The jobs must have been recovered before: see
// [checkpoint.Recover]. It returns what was done, for people.
func Recover(ctx context.Context, hook *hooks.Hook) (done []string, err error) {
	hook = hook.Filled()
	trees, treesErr := recoverTrees(ctx, hook)
	all, err := jobs.AllLeaving(hook)
	errs := []error{treesErr, err}
	done = trees
	for _, job := range all {
		if ctx.Err() != nil {
			break
		}
		message, m, err := recoverJob(hook, job)
		if err != nil {
			errs = append(errs, fmt.Errorf("move %s of %s: %w", m.ID, job.Name, err))
		} else if message != "" {
			done = append(done, fmt.Sprintf("move %s: %s", m.ID, message))
		}
	}
	return done, errors.Join(errs...)
}

// recoverTrees brings the migrations of process trees to an end.
func recoverTrees(ctx context.Context, hook *hooks.Hook) (done []string, err error) {
	all, err := pendingRecords(hook.Config.RunDir)
	errs := []error{err}
	stages := []string{defaultStage}
	for _, r := range all {
		locked, err := r.tryLock()
		if err != nil {
			errs = append(errs, err)
		}
		if !locked || ctx.Err() != nil {
			r.unlock()
			continue
		}
		stages = append(stages, r.Stage)
		if err := recoverTree(hook, r); err != nil {
			errs = append(errs, fmt.Errorf("migration %s: %w", r.ID, err))
		} else {
			done = append(done, fmt.Sprintf("migration %s of process %d (%s): %s was notified of the decision", r.ID, r.RootPID, r.Name, r.Host))
		}
		r.unlock()
	}
	for _, stage := range stages {
		removeStale(hook.Config.RunDir, stage)
	}
	errs = append(errs, removeMade(hook))
	return done, errors.Join(errs...)
}

func recoverTree(hook *hooks.Hook, r *record) error {
	s := newTreeSource(hook, r.RootPID, Options{Host: r.Host, RSH: r.RSH, Remote: r.Remote})
	s.record, s.result.ID, s.recovering, s.addressMoved = r, r.ID, true, true
	defer s.sourceSession.close()
	return s.handleEvent(commit.Recover)
}

// supervisorPatience is how long the lock of a move is waited for: a supervisor whose move was cut
// off has it for a moment.
const supervisorPatience = 10 * time.Second

// recoverJob brings the move of a long job to an end. The message is empty if there was nothing to do.
func recoverJob(hook *hooks.Hook, job *jobs.Leaving) (message string, m jobs.Move, err error) {
	if m, err = jobs.ReadMove(job.Dir); err != nil || m.State == jobs.MoveNone || m.State == jobs.MoveLeft && m.PeerKnows {
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
	defer func() { _ = lock.Free() }()
	if m, err = jobs.ReadMove(job.Dir); err != nil {
		return "", m, err
	}
	switch m.State {
	case jobs.MoveLeaving, jobs.MoveStays, jobs.MoveLeft:
		if m.PeerKnows {
			return "", m, nil
		}
		message, err = tellDestination(hook, job, m)
		return message, m, err
	case jobs.MovePromised:
		return "", m, &jobs.ElsewhereError{Dir: job.Dir, Move: m}
	case jobs.MoveArriving:
		message = "the partial copy of " + job.Name + " was removed: it stays at " + m.Peer
	case jobs.MoveArrived:
		ran, err := jobs.HasRunSince(job.Dir, m.Events)
		if err != nil || ran || job.IsUp() {
			return "", m, err
		}
		message = job.Name + " runs here"
	default:
		return "", m, nil
	}
	_, err = answerEvent(context.Background(), newMovedJob(hook, job.Dir, m.ID), commit.Recover)
	if errors.As(err, new(*jobs.ReturnedError)) {
		return job.Name + " could not be resumed here, and is returned; run cucriu recover at " + m.Peer, m, nil
	}
	return message, m, err
}

// tellDestination tells the destination of a move what was decided here.
func tellDestination(hook *hooks.Hook, job *jobs.Leaving, m jobs.Move) (string, error) {
	if len(m.RSH) == 0 {
		return "", errors.New("its record names no remote shell")
	}
	s := newJobSource(hook, job, Options{Host: m.Peer, RSH: m.RSH, Remote: m.Remote})
	s.result.ID, s.recovering = m.ID, true
	defer s.close()
	var returned *returnedError
	switch err := s.handleEvent(commit.Recover); {
	case errors.As(err, &returned):
		return fmt.Sprintf("%s could not be resumed at %s (%s): the same cucriu run command resumes it here", job.Name, m.Peer, returned.why), nil
	case err != nil:
		return "", err
	case m.State == jobs.MoveLeft && s.result.PID == 0:
		return fmt.Sprintf("%s has arrived at %s, and has no supervisor there now: see cucriu jobs list there", job.Name, m.Peer), nil
	case m.State == jobs.MoveLeft:
		return fmt.Sprintf("%s runs at %s", job.Name, m.Peer), nil
	}
	return fmt.Sprintf("%s stays here, and %s was notified", job.Name, m.Peer), nil
}

// Settle decides about a migration in place of a host that cannot be asked: take lets the job run
// here, otherwise what is here of it is ended; at the source of a long job that stays there, the move
// is. The migration is named by its ID or, that of a long job, by its directory. It relies on what the user knows: see [commit.WhenToTake] and
// [commit.WhenToDrop]. It returns what was done, for people.
func Settle(ctx context.Context, hook *hooks.Hook, name string, take bool) (message string, err error) {
	hook = hook.Filled()
	e := commit.Drop
	if take {
		e = commit.Take
	}
	switch held, err := checkpoint.FindHeld(hook, name); {
	case err == nil && held.Kind == checkpoint.KindRestore:
		message, err := settleTree(ctx, hook, name, e)
		return message, errors.Join(err, removeMade(hook))
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return "", err
	}
	dir, err := findMove(hook, name)
	if err != nil {
		return "", err
	}
	waiting, cancel := context.WithTimeout(ctx, supervisorPatience)
	defer cancel()
	lock, err := jobs.LockMove(waiting, dir)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Free() }()
	m, err := jobs.ReadMove(dir)
	switch {
	case err != nil:
		return "", err
	case m.State == jobs.MoveLeft && take:
		if m.Returned != "" { // and its source may not have heard that
			err = jobs.NoteArrival(dir, m.ID)
		}
		if err == nil {
			err = jobs.RemoveMove(dir)
		}
		return "the same cucriu run command resumes the job here", err
	case (m.State == jobs.MoveLeaving || m.State == jobs.MoveStays) && !take:
		return dropAtSource(dir, m)
	case m.State == jobs.MoveArriving && !take:
		e = commit.Recover
	case m.State != jobs.MovePromised:
		return "", fmt.Errorf("move %s of the job in %s is in state %q: there is nothing to decide", m.ID, dir, m.State)
	}
	job := newMovedJob(hook, dir, m.ID)
	job.taken = take
	_, err = answerEvent(ctx, job, e)
	if !take {
		return "the partial copy was removed", err
	}
	if state, _, stateErr := job.state(); err != nil && stateErr == nil && state == commit.Go {
		err = fmt.Errorf("%w: the job belongs here now, but does not run: %w; the same cucriu run command tries again", hooks.ErrNotBack, err)
	}
	return "the job runs here", err
}

// dropAtSource ends a move that has not been decided, or whose job stays here, without telling the destination.
// What that may still hold never runs: nobody will ever say commit to it.
func dropAtSource(dir string, m jobs.Move) (message string, err error) {
	m.State = jobs.MoveStays // so that nobody decides otherwise meanwhile
	if err := errors.Join(m.Write(dir), jobs.RemoveMove(dir)); err != nil {
		return "", err
	}
	return fmt.Sprintf("the job of %s stays here, and %[2]s was not notified: if %[2]s holds a copy, end it there with cucriu recover --drop %[3]s", dir, quote.Foreign(m.Peer), m.ID), nil
}

// settleTree decides about the copy of a process tree.
func settleTree(ctx context.Context, hook *hooks.Hook, id string, e commit.Event) (message string, err error) {
	if _, err := answerEvent(ctx, &heldTree{host: hook, id: id}, e); err != nil {
		return "", fmt.Errorf("migration %s: %w", id, err)
	}
	held, err := checkpoint.FindHeld(hook, id)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("process %d: %s: %s", held.RootPID, held.Outcome, held.Message), nil
}

// findMove finds the job of a move by its ID or the directory of the job.
func findMove(hook *hooks.Hook, name string) (dir string, err error) {
	if filepath.IsAbs(name) {
		m, err := jobs.ReadMove(name)
		if err == nil && m.State == jobs.MoveNone {
			err = preflight.AsRefusal(fmt.Errorf("%s has no record of a migration", name))
		}
		return name, err
	}
	all, err := jobs.AllLeaving(hook)
	if err != nil {
		return "", err
	}
	for _, job := range all {
		if m, err := jobs.ReadMove(job.Dir); err == nil && m.ID == name {
			return job.Dir, nil
		}
	}
	return "", preflight.AsRefusal(fault.New(fmt.Sprintf("this host has no copy of a job from migration %.80q", name), "cucriu status lists the migrations; after a reboot, specify the job directory instead"))
}

// A source that gives a migration up may say so before its job is known here. What it has given
// up is never promised.

const droppedSuffix = ".dropped"

func droppedPath(hook *hooks.Hook, id string) string {
	return filepath.Join(recordsDir(hook.Config.RunDir), id+droppedSuffix)
}

func noteDropped(hook *hooks.Hook, id string) error {
	if err := os.MkdirAll(recordsDir(hook.Config.RunDir), 0o700); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	old, _ := durable.Match(recordsDir(hook.Config.RunDir), "*"+droppedSuffix)
	for _, path := range old {
		if info, err := os.Lstat(path); err == nil && time.Since(info.ModTime()) > 24*time.Hour {
			_ = os.Remove(path)
		}
	}
	return os.WriteFile(droppedPath(hook, id), nil, 0o600)
}

func isDropped(hook *hooks.Hook, id string) bool {
	_, err := os.Lstat(droppedPath(hook, id))
	return err == nil
}
