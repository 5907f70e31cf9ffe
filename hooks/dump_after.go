package hooks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"cucriu/criuutil"
	"cucriu/criuutil/pages"
	"cucriu/criuutil/proc"
	"cucriu/hooks/image"
)

// stepTransferring is the step of a dump with --lazy-pages after post-dump: criu waits
// for the restore that fetches the pages, and ends the processes once it has them all.
const stepTransferring = "transferring"

// postDump notes that criu has written a complete image, and gives it its name.
// An error makes criu leave the processes alive. See [Hook.hold] for the stop.
func (h *Hook) postDump(ctx context.Context, criu *criuutil.Criu, stage Stage) error {
	s, err := h.sessionOf(KindDump, criu)
	if err != nil {
		return err
	}
	commit := func() error {
		if stage.Commit == nil {
			return nil
		}
		return stage.Commit(ctx)
	}
	if s == nil {
		return commit() // no process of the tree uses CUDA
	}
	defer s.unlock()
	s.noteCriu()
	if err := failpoint(ctx, s, "dump.post-dump"); err != nil {
		return err
	}
	if err := s.complete(); err != nil {
		return err
	}
	if err := s.checkWhole(criu, stage); err != nil {
		return fmt.Errorf("the image is not whole, and the job is not ended; dump again into a directory that nobody else changes: %w", err)
	}
	if err := s.Timeline().Write(filepath.Join(stage.ImageDir, image.TimelineName)); err != nil {
		h.Log.Warn("the image is without a timeline", "error", err)
	}
	if err := s.step("publish", commit); err != nil {
		return err
	}
	step := "dumped"
	if s.LazyPages {
		step = stepTransferring
	}
	return s.step(step, s.stopMembers)
}

// servedByClient reports whether the latest session of a running criu is
// another process's, which serves criu over RPC.
func (h *Hook) servedByClient(criu *criuutil.Criu) (bool, error) {
	if isForeignRunDir(h.Config.RunDir) {
		return false, nil
	}
	all, err := Sessions(h.Config.RunDir)
	if err != nil {
		return false, err
	}
	for _, s := range slices.Backward(all) {
		if s.Criu == criu.Ident {
			return s.Client != nil, nil
		}
	}
	return false, nil
}

// complete fails if a process of the manifest has ended since: criu dumps what
// it finds, and from an image without it the others could not be restored.
func (s *Session) complete() error {
	for _, member := range s.Members {
		process, err := proc.Reopen(member.Ident)
		if err == nil {
			if process.Exiting() {
				err = proc.ErrGone
			}
			process.Close()
		}
		if err != nil {
			return fmt.Errorf("process %d (%s) is not there for the whole dump, and the image could not be restored without it (what is left of the job runs on): dump again: %w", member.PID, member.Name, err)
		}
	}
	return nil
}

// sessionOf finds and locks the open session of a running criu, nil if it has
// none: then no process of its tree uses CUDA, or the session is over.
func (h *Hook) sessionOf(kind Kind, criu *criuutil.Criu) (*Session, error) {
	s, err := h.latestSessionOf(kind, criu, true)
	if err != nil || s == nil {
		return nil, err
	}
	if s.Outcome != "" {
		s.unlock()
		return nil, nil
	}
	return s, nil
}

// latestSessionOf finds and locks the latest session of a running criu, open or
// over, nil if it has none. If it is not to wait for who is at work on it, it fails
// with [errSessionBusy] then.
func (h *Hook) latestSessionOf(kind Kind, criu *criuutil.Criu, wait bool) (*Session, error) {
	if isForeignRunDir(h.Config.RunDir) {
		return nil, nil
	}
	sessions, err := sessionsDir(h.Config.RunDir)
	if err != nil {
		return nil, err
	}
	dir := sessionPath(sessions, kind, criu.Ident)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	s, err := loadSession(dir, wait)
	if err != nil {
		return nil, err
	}
	if s.Criu != criu.Ident { // one with the same pid, in another pid namespace
		s.unlock()
		return nil, nil
	}
	s.progress, s.by = h.Progress, h.by
	return s, nil
}

// checkWhole fails if the image is not whole any more.
func (s *Session) checkWhole(criu *criuutil.Criu, stage Stage) error {
	if s.Written == nil {
		return nil // an earlier version began the dump
	}
	store := stage.Pages
	if store == nil {
		store = pages.Files{Dir: stage.ImageDir}
	}
	return s.Written.CheckWhole(stage.ImageDir, s.ImageDir, store, criu.RPC || criu.PagesElsewhere)
}
