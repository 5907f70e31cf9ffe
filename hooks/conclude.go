package hooks

import (
	"context"

	"cucriu/internal/journal"
	"cucriu/internal/proc"
)

// conclude brings a session whose criu has ended to a good end.
func (h *Hook) conclude(ctx context.Context, s *session) error {
	if err := h.concludeProcesses(ctx, s); err != nil || s.Kind != journal.KindDump {
		return err
	}
	if err := s.removePages(); err != nil {
		h.Log.Warn("files of the fast lane are left in the image directory", "session", s.Name(), "error", err)
	}
	return s.dropPartial()
}

// concludeProcesses brings the processes of a session to a good end, and closes it.
func (h *Hook) concludeProcesses(ctx context.Context, s *session) error {
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
		return h.finishRestore(ctx, s)
	case journal.KindSuspend:
		return h.finishSuspend(ctx, s)
	}
	return h.finishDump(ctx, s)
}
