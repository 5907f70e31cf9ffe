package watch

import (
	"context"
	"slices"

	"cucriu/internal/engine"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
	"cucriu/internal/session"
)

// conclude brings a session whose criu has ended to a good end.
func conclude(ctx context.Context, s *session.Session) error {
	if err := concludeProcesses(ctx, s); err != nil || s.Kind != journal.KindDump {
		return err
	}
	if err := session.RemovePages(&s.Record); err != nil {
		s.Env.Log.Warn("files of the fast lane are left in the image directory", "session", s.Name(), "error", err)
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
	_, err = s.CloseAlive(journal.OutcomeRunning, "the command was cut off at step "+string(s.Step)+"; ", "runs")
	return err
}
