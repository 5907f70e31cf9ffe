package stages

import (
	"context"
	"fmt"
	"path/filepath"

	"cucriu/internal/image"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
	"cucriu/internal/session"
)

// postDump notes that criu has written a complete image, and gives it its name. An error makes criu
// leave the processes alive. [call.networkUnlock] says why postDump stops them.
func (c *call) postDump(ctx context.Context) error {
	s, err := c.openSession(journal.KindDump)
	if err != nil {
		return err
	}
	commit := func() error {
		if c.stage.Commit == nil {
			return nil
		}
		return c.stage.Commit(ctx)
	}
	if s == nil {
		return commit() // no process of the tree uses CUDA
	}
	defer s.LetGo()
	s.NoteCriu()
	if err := s.Failpoint(ctx, "dump.post-dump"); err != nil {
		return err
	}
	if err := requireAllMembers(s.Members); err != nil {
		return err
	}
	if err := c.checkWhole(&s.Record); err != nil {
		return fmt.Errorf("the image is not whole, and the job is not ended; dump again into a directory that nobody else changes: %w", err)
	}
	if err := s.Timeline().Write(filepath.Join(c.stage.ImageDir, image.TimelineName)); err != nil {
		c.Log.Warn("the image is without a timeline", "error", err)
	}
	if err := s.DoStep(journal.StepPublish, commit); err != nil {
		return err
	}
	step := journal.StepDumped
	if s.LazyPages {
		step = journal.StepTransferring
	}
	return s.DoStep(step, func() error { return session.StopMembers(&s.Record) })
}

// requireAllMembers fails if a process of the manifest has ended since. criu dumps what it finds, and
// if one process is missing from the image, the others cannot be restored from it.
func requireAllMembers(members []journal.Member) error {
	for _, member := range members {
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

// checkWhole fails if the image is no longer whole.
func (c *call) checkWhole(r *journal.Record) error {
	if r.Written == nil {
		return nil // an earlier version began the dump
	}
	return r.Written.CheckWhole(c.stage.ImageDir, r.ImageDir, c.criu.RPC || c.criu.PagesElsewhere)
}

// networkUnlock stops the CUDA processes of a dump before criu lets go of them: those that it got
// through a v1 freezer would run checkpointed as soon as somebody thawed them. criu traces them now, so
// the signal waits.
func (c *call) networkUnlock(context.Context) error {
	s, err := c.openSession(journal.KindDump)
	if err != nil || s == nil {
		return err
	}
	defer s.LetGo()
	return session.StopMembers(&s.Record)
}
