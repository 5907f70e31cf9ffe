package hooks

import (
	"errors"
	"fmt"
	"os"

	"cucriu/internal/image"
	"cucriu/internal/proc"
)

// NewPartial makes the folder that criu writes into. It leaves alone what a killed dump has
// left there, if that dump's job must yet be brought back from it.
func (h *Hook) NewPartial(dir string) (string, error) {
	h = h.Filled()
	return image.NewPartial(dir, func(partial string) bool {
		session, err := neededBy(h.Config.RunDir, partial)
		if err == nil && session == "" {
			return false
		}
		h.Log.Info("what a killed dump has left stays for now: its job is not back yet", "directory", partial, "session", session, "error", err)
		return true
	})
}

// dropPartial removes what a client wrote, if that client has ended and cannot give it its
// name any more.
func (s *session) dropPartial() error {
	if s.Client == nil || !image.IsPartial(s.ImageDir) {
		return nil
	}
	client, err := proc.Reopen(*s.Client)
	if err == nil {
		client.Close()
		return nil
	}
	if !errors.Is(err, proc.ErrGone) {
		return err
	}
	if err := os.RemoveAll(s.ImageDir); err != nil {
		return fmt.Errorf("remove the partial image: %w", err)
	}
	return nil
}
