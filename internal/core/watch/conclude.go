package watch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"cucriu/internal/core/engine"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/proc"
)

// conclude brings a session whose criu has ended to a good end.
func conclude(ctx context.Context, s *session.Session) error {
	if err := concludeProcesses(ctx, s); err != nil || s.Kind != journal.KindDump {
		return err
	}
	if err := session.RemovePages(&s.Record); err != nil {
		s.Env.Log.Warn("files of the fast lane were left in the image directory", "session", s.Name(), "error", err)
	}
	return session.DropPartial(&s.Record)
}

// concludeProcesses brings the processes of a session to a good end, and closes it.
func concludeProcesses(ctx context.Context, s *session.Session) error {
	if s.Outcome != "" {
		return s.Close(s.Outcome, s.Message) // this could not be written before: the disk was full
	}
	boot, err := proc.BootID()
	if err != nil {
		return err
	}
	if s.BootID != boot {
		return s.Close(journal.OutcomeGone, "the host has rebooted since")
	}
	switch s.Kind {
	case journal.KindRestore:
		return finishRestore(ctx, s)
	case journal.KindSuspend:
		return finishSuspend(ctx, s)
	}
	return finishDump(ctx, s)
}

// finishSuspend brings back the processes that a killed command left behind.
func finishSuspend(ctx context.Context, s *session.Session) error {
	if !slices.ContainsFunc(s.Members, journal.Member.Alive) {
		return s.Close(journal.OutcomeGone, "the processes ended")
	}
	if s.Suspended() {
		return nil // they are as they were asked to be
	}
	driver, targets, err := engine.OpenTargets(s)
	if err != nil {
		return err
	}
	defer engine.CloseTargets(targets)
	if err := engine.BringBack(ctx, driver, s, targets); err != nil {
		return err
	}
	_, err = s.CloseAlive(journal.OutcomeRunning, "the command was interrupted at step "+string(s.Step)+"; ", "runs")
	return err
}

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
	rootGone := s.Root != nil && !journal.Member{Process: inspect.Process{Ident: *s.Root}}.Alive()
	v := dumpVerdict(&s.Record, living, rootGone)
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
		locks.CloseSockets() // they end with the processes
		remove = func() error { return locks.Remove(ctx) }
	}
	var err, removeErr error
	if s.Hold.KeepsConnections {
		tree, treeErr := session.OpenTree(&s.Record)
		defer proc.CloseAll(tree)
		if err = errors.Join(treeErr, session.KillTree(&s.Record)); err == nil {
			awaitEnds(ctx, tree)
			removeErr = remove()
		}
	} else { // also if we are killed between the two
		removeErr = remove()
		err = session.KillTree(&s.Record)
	}
	if ruleErr := errors.Join(findErr, removeErr); ruleErr != nil {
		s.Env.Log.Warn("rules that block the job's TCP connections may be left", "session", s.Name(), "error", ruleErr)
	}
	return err
}

// endRestored ends the processes of a restore. Connections that the source keeps end here without a word.
func endRestored(s *session.Session) error {
	if s.Hold.KeepsConnections {
		locks, err := engine.FindLocks(&s.Record)
		if err == nil {
			err = locks.Silence()
			locks.Close()
		}
		if err != nil {
			s.Env.Log.Warn("TCP connections of the job may end, which its source has, too", "session", s.Name(), "error", err)
		}
	}
	return session.KillTree(&s.Record)
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

// Finish brings the session of a criu that has ended to a good end, as its watcher would, and returns
// it; nil if there is none. cause is why criu failed, for the journal; empty if it did not, or it is
// not known.
func Finish(ctx context.Context, env *session.Env, kind journal.Kind, criu proc.Ident, cause string) (*journal.Session, error) {
	ctx = context.WithoutCancel(ctx)
	deadline := time.Now().Add(env.Config.Lock.Timeout) // gives a watcher that fails at first time for another try
	s, err := session.LatestSessionOf(env, kind, criu, session.ByCommand, false)
	for ; errors.Is(err, journal.ErrBusy); s, err = session.LatestSessionOf(env, kind, criu, session.ByCommand, false) {
		// Its watcher is at work, and gives the lock back once it has succeeded.
		if now := failedTry(env.Config.RunDir, kind, criu); now != nil && time.Now().After(deadline) {
			return now, fmt.Errorf("%w, its watcher keeps trying (cucriu status shows it): %s", session.ErrNotBack, strings.TrimPrefix(now.Message, session.StuckPrefix))
		}
		time.Sleep(5 * time.Millisecond) // there is no event for a try that has failed
	}
	if err != nil {
		return nil, fmt.Errorf("%w, as far as can be determined: %w", session.ErrNotBack, err)
	}
	if s == nil {
		return nil, nil
	}
	defer s.Unlock()
	defer s.CloseKeeper()
	if err := conclude(ctx, s); err != nil {
		s.NoteStuck(err)
		return s.Session, fmt.Errorf("%w, its watcher keeps trying (cucriu status shows it): %w", session.ErrNotBack, err)
	}
	if cause != "" && s.Outcome != journal.OutcomeDumped {
		s.Message += "; the cause: " + cause
		if err := s.Save(); err != nil { // the job is at its good end all the same
			env.Log.Warn("the journal does not record why criu failed", "session", s.Name(), "error", err)
		}
	}
	return s.Session, nil
}

// failedTry returns the session as it stands in the journal, if its watcher has tried to finish it and
// failed.
func failedTry(runDir string, kind journal.Kind, criu proc.Ident) *journal.Session {
	s, err := journal.Read(journal.Path(runDir, kind, criu))
	if err != nil || s.Outcome != "" || !s.Stuck {
		return nil
	}
	return s
}

// AwaitStandstill waits until every thread of a tree that was left stopped has stopped: criu does not
// wait for its SIGSTOP to take effect.
func AwaitStandstill(ctx context.Context, env *session.Env, root int) error {
	pids, err := proc.Tree(root)
	if errors.Is(err, proc.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, env.Patience(pids...))
	defer cancel()
	for _, pid := range pids {
		process, err := proc.Open(pid)
		if err == nil {
			err = errors.Join(proc.WaitStopped(ctx, process), process.Close())
		}
		if err != nil && !errors.Is(err, proc.ErrGone) {
			return err
		}
	}
	return nil
}
