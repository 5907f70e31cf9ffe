package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"cucriu/internal/durable"
	"cucriu/internal/failpoint"
	"cucriu/internal/jobs/life"
)

// flagsName is the file that says with which options a job was run last.
const flagsName = "flags.json"

// noteFlags keeps the options of the supervisor for the one of the host to which the job may move.
func noteFlags(s *core) {
	if err := durable.WriteJSON(filepath.Join(s.Dir, flagsName), append([]string{}, s.Flags...)); err != nil {
		s.say(fmt.Sprintf("the options are not noted for a host to which the job may move: %v", err))
	}
}

// Flags returns the options with which a job was run last, without the directory.
func Flags(dir string) (flags []string, err error) {
	err = durable.ReadJSON(filepath.Join(dir, flagsName), &flags)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("options of the job: %w", err)
	}
	return flags, nil
}

// hasLeft reports whether the job belongs to another host. It fails if it may.
func (s *lease) hasLeft() (bool, error) {
	m, err := ReadMove(s.Dir)
	if err != nil {
		return false, err
	}
	switch m.State {
	case MoveLeft:
		s.say(m.elsewhere(s.Dir))
		_ = NoteLocal(s.hook.Config.RunDir, s.Dir, StatePreempted) // so that cucriu recover finds it
		return true, nil
	case MoveArriving, MovePromised:
		return false, &ElsewhereError{s.Dir, m}
	}
	return false, nil
}

// lookAtMove reads the record of the move. While the program that moves the job lives, a job that
// has left may yet be given back. If it was killed before it has decided, the job goes on here.
func (s *core) lookAtMove(ctx context.Context) (Move, error) {
	lock, err := TryLockMove(s.Dir)
	moves := errors.Is(err, ErrMoving)
	if err != nil && !moves {
		return Move{}, err
	}
	if !moves {
		defer lock.Free()
	}
	m, err := ReadMove(s.Dir)
	switch {
	case err != nil:
		return m, err
	case moves && m.State == MoveLeft:
		m.State = MoveLeaving
	case !moves && m.State == MoveLeaving:
		m.State = MoveStays
		if err := failpoint.Hit(ctx, "jobs.stays", 0); err != nil {
			return m, err
		}
		if err := m.Write(s.Dir); err != nil {
			return m, err
		}
		s.say(fmt.Sprintf("the move to %s was cut off: %s goes on here; cucriu recover tells that host", m.Peer, s.record.Name))
	}
	return m, nil
}

// findMove finds where the job runs.
func (s *core) findMove(ctx context.Context, e *event) (err error) {
	e.Kind = life.MoveStays
	switch e.move, err = s.lookAtMove(ctx); e.move.State {
	case MoveLeft:
		e.Kind = life.MoveLeft
	case MoveLeaving:
		e.Kind = life.MoveOpen
	}
	return err
}
