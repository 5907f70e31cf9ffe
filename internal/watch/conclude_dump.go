package watch

import (
	"context"
	"errors"
	"slices"
	"time"

	"cucriu/internal/engine"
	"cucriu/internal/proc"
	"cucriu/internal/session"
)

// finishDump brings what criu has left of a dump's processes to a good end, whether the dump failed,
// criu was killed, or the job was to run on.
func finishDump(ctx context.Context, s *session.Session) error {
	driver, targets, err := engine.OpenTargets(s)
	if err != nil {
		return err
	}
	defer engine.CloseTargets(targets)
	if err := awaitRelease(ctx, targets); err != nil {
		return err
	}
	s.NoteCriu()
	if done, err := concludeHeld(ctx, s); done || err != nil {
		return err
	}
	alive := slices.DeleteFunc(slices.Clone(targets), func(t *engine.Target) bool { return !t.Alive() })
	living := len(alive)
	if len(s.Members) == 0 {
		living = len(session.OutcomeOf(session.MembersOrRoot(&s.Record)).Alive)
	}
	v := dumpVerdict(&s.Record, living)
	if v.kill {
		if err := session.KillTree(&s.Record); err != nil {
			return err
		}
	} else {
		if living > 0 {
			s.BackBegun = true
			s.Note()
		}
		if err := engine.BringBack(ctx, driver, s, alive); err != nil { // this continues what is left of the tree, too
			return err
		}
	}
	if v.livingDo == "" {
		return s.Close(v.outcome, v.message)
	}
	_, err = s.CloseAlive(v.outcome, v.message, v.livingDo)
	s.Env.Log.Info(s.Message, "session", s.Name(), "outcome", s.Outcome, "processes", engine.PidsOf(alive))
	return err
}

// endDumped ends the processes of a dump, and removes the rules by which criu holds back their
// connections. If these go on elsewhere, no packet may reach the sockets here: they would acknowledge
// it.
func endDumped(ctx context.Context, s *session.Session) error {
	remove := func() error { return nil }
	locks, findErr := engine.FindLocks(&s.Record)
	if findErr == nil {
		defer locks.Close()
		locks.LetGo() // they end with the processes
		remove = func() error { return locks.Remove(ctx) }
	}
	var err, removeErr error
	if s.Hold.KeepsConnections {
		tree, treeErr := session.OpenTree(&s.Record)
		defer session.CloseAll(tree)
		if err = errors.Join(treeErr, session.KillTree(&s.Record)); err == nil {
			awaitEnds(ctx, tree)
			removeErr = remove()
		}
	} else { // also if we are killed between the two
		removeErr = remove()
		err = session.KillTree(&s.Record)
	}
	if ruleErr := errors.Join(findErr, removeErr); ruleErr != nil {
		s.Env.Log.Warn("rules that hold back the job's TCP connections may be left", "session", s.Name(), "error", ruleErr)
	}
	return err
}

// endPatience is how long killed processes may take to end: the destination waits.
const endPatience = 10 * time.Second

// awaitEnds waits until killed processes have closed their sockets, and no longer than endPatience.
func awaitEnds(ctx context.Context, processes []*proc.Process) {
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	for _, p := range processes {
		_ = p.WaitExit(ctx)
	}
}

// awaitRelease waits until criu has let go of the processes: those that it killed have ended, and the
// others are no longer traced.
func awaitRelease(ctx context.Context, targets []*engine.Target) error {
	for _, t := range targets {
		for pause := time.Millisecond; t.Alive(); pause = min(2*pause, 100*time.Millisecond) {
			if t.Exiting() {
				if err := t.WaitExit(ctx); err != nil {
					return err
				}
				break
			}
			status, err := proc.ReadStatus(t.PID)
			if errors.Is(err, proc.ErrGone) || err == nil && status.TracerPID == 0 {
				break
			}
			if err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(pause):
			}
		}
	}
	return nil
}
