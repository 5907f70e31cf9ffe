package hooks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"cucriu/criuutil"
	"cucriu/internal/image"
	"cucriu/internal/journal"
	"cucriu/internal/pages"
	"cucriu/internal/proc"
)

// onPostDump notes that criu has written a complete image, and gives it its name. An error
// makes criu leave the processes alive. [Hook.onNetworkUnlock] says why onPostDump stops them.
func (h *Hook) onPostDump(ctx context.Context, criu *criuutil.Criu, stage Stage) error {
	s, err := h.sessionOf(journal.KindDump, criu)
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
	defer s.LetGo()
	s.NoteCriu()
	if err := s.failpoint(ctx, "dump.post-dump"); err != nil {
		return err
	}
	if err := s.requireAllMembers(); err != nil {
		return err
	}
	if err := s.checkWhole(criu, stage); err != nil {
		return fmt.Errorf("the image is not whole, and the job is not ended; dump again into a directory that nobody else changes: %w", err)
	}
	if err := s.Timeline().Write(filepath.Join(stage.ImageDir, image.TimelineName)); err != nil {
		h.Log.Warn("the image is without a timeline", "error", err)
	}
	if err := s.doStep(journal.StepPublish, commit); err != nil {
		return err
	}
	step := journal.StepDumped
	if s.LazyPages {
		step = journal.StepTransferring
	}
	return s.doStep(step, s.stopMembers)
}

// servedByClient reports whether another process serves a running criu over RPC, as the
// latest session of this criu has it.
func (h *Hook) servedByClient(criu *criuutil.Criu) (bool, error) {
	if journal.IsForeign(h.Config.RunDir) {
		return false, nil
	}
	all, err := journal.List(h.Config.RunDir)
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

// requireAllMembers fails if a process of the manifest has ended since. criu dumps what it finds,
// and if one process is missing from the image, the others cannot be restored from it.
func (s *session) requireAllMembers() error {
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

// sessionOf finds and locks the open session of a running criu. It returns nil if there is
// none: then no process of criu's tree uses CUDA, or the session is over.
func (h *Hook) sessionOf(kind journal.Kind, criu *criuutil.Criu) (*session, error) {
	s, err := h.latestSessionOf(kind, criu, true)
	if err != nil || s == nil {
		return nil, err
	}
	if s.Outcome != "" {
		s.LetGo()
		return nil, nil
	}
	return s, nil
}

// latestSessionOf finds and locks the latest session of a running criu, open or over. It
// returns nil if there is none. If somebody is at work on the session, it waits, or without
// wait fails with [journal.ErrBusy].
func (h *Hook) latestSessionOf(kind journal.Kind, criu *criuutil.Criu, wait bool) (*session, error) {
	if journal.IsForeign(h.Config.RunDir) {
		return nil, nil
	}
	if _, err := journal.MakeSessionsDir(h.Config.RunDir); err != nil {
		return nil, err
	}
	dir := journal.Path(h.Config.RunDir, kind, criu.Ident)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	s, err := journal.Load(dir, wait)
	if err != nil {
		return nil, err
	}
	if s.Criu != criu.Ident { // another criu with the same pid, in another pid namespace
		s.LetGo()
		return nil, nil
	}
	return h.takeOn(s), nil
}

// checkWhole fails if the image is no longer whole.
func (s *session) checkWhole(criu *criuutil.Criu, stage Stage) error {
	if s.Written == nil {
		return nil // an earlier version began the dump
	}
	store := stage.Pages
	if store == nil {
		store = pages.Files{Dir: stage.ImageDir}
	}
	return s.Written.CheckWhole(stage.ImageDir, s.ImageDir, store, criu.RPC || criu.PagesElsewhere)
}
