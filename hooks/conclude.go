package hooks

import (
	"context"
	"slices"

	"cucriu/internal/journal"
	"cucriu/internal/proc"
)

// conclude brings a session whose criu has ended to a good end.
func conclude(ctx context.Context, s *session) error {
	if err := concludeProcesses(ctx, s); err != nil || s.Kind != journal.KindDump {
		return err
	}
	if err := removePages(&s.Record); err != nil {
		s.env.Log.Warn("files of the fast lane are left in the image directory", "session", s.Name(), "error", err)
	}
	return dropPartial(&s.Record)
}

// concludeProcesses brings the processes of a session to a good end, and closes it.
func concludeProcesses(ctx context.Context, s *session) error {
	if s.Outcome != "" {
		return s.close(s.Outcome, s.Message) // this could not be written before: the disk was full
	}
	boot, err := proc.BootID()
	if err != nil {
		return err
	}
	if s.BootID != boot {
		return s.close(journal.OutcomeGone, "the host has rebooted since")
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
func finishSuspend(ctx context.Context, s *session) error {
	if !slices.ContainsFunc(s.Members, journal.Member.Alive) {
		return s.close(journal.OutcomeGone, "the processes ended")
	}
	if s.Suspended() {
		return nil // they are as they were asked to be
	}
	driver, targets, err := openTargets(s)
	if err != nil {
		return err
	}
	defer closeTargets(targets)
	if err := bringBack(ctx, driver, s, targets); err != nil {
		return err
	}
	_, err = s.closeAlive(journal.OutcomeRunning, "the command was cut off at step "+string(s.Step)+"; ", "runs")
	return err
}
