package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"cucriu/hooks/preflight"
	"cucriu/internal/criuimage"
	"cucriu/internal/jobs/files"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/jobs/store"
)

// resumeNewest resumes the newest checkpoint that can be restored. What this host refuses would
// be lost by taking an older one, and may go through later or elsewhere.
func (s *supervisor) resumeNewest(ctx context.Context, all []store.Checkpoint) error {
	all = inTurn(all)
	failed := make(map[string]error)
	for i, c := range all {
		err := s.resumeStubbornly(ctx, c)
		if err == nil {
			s.giveUp(failed)
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		if preflight.Refused(err) {
			return fmt.Errorf("checkpoint %s is whole, but cannot be restored here: %w", called(c), err)
		}
		failed[c.Name] = err
		next := "and there is no other"
		if i+1 < len(all) {
			next = "trying checkpoint " + all[i+1].Name
		}
		s.tell(Event{Event: EventFailed, Checkpoint: c.Name, Message: fmt.Sprintf("checkpoint %s cannot be restored, %s: %v", called(c), next, err)})
	}
	return fmt.Errorf("%s is not resumed, and not started anew: %w", s.record.Name, errors.Join(slices.Collect(maps.Values(failed))...))
}

// resumeStubbornly tries a checkpoint a second time if it is not known to be damaged: to take the
// one before loses an interval, and somebody may just have killed criu.
func (s *supervisor) resumeStubbornly(ctx context.Context, c store.Checkpoint) error {
	err := s.resume(ctx, c)
	refused := new(insideError)
	switch {
	case err == nil, ctx.Err() != nil, c.Err != nil, errors.As(err, new(*store.DamageError)):
		return err
	case errors.As(err, &refused) && refused.refused:
		return err
	}
	s.tell(Event{Event: EventFailed, Checkpoint: c.Name, Message: fmt.Sprintf("checkpoint %s was not restored, trying it again: %v", called(c), err)})
	return s.resume(ctx, c)
}

// inTurn returns the checkpoints in the order in which they are tried: the newest first, and last
// of all those that were given up.
func inTurn(all []store.Checkpoint) []store.Checkpoint {
	all = slices.Clone(all)
	slices.Reverse(all)
	slices.SortStableFunc(all, func(a, b store.Checkpoint) int {
		return cmp.Compare(min(len(a.GivenUp), 1), min(len(b.GivenUp), 1))
	})
	return all
}

// giveUp records which checkpoints did not restore, now that the job goes on from an older one,
// which has put back the job's files further.
func (s *supervisor) giveUp(failed map[string]error) {
	for name, why := range failed {
		if err := s.store.GiveUp(name, why); err != nil {
			s.say(err.Error())
		}
	}
}

// resume restores a checkpoint in a new sandbox.
func (s *supervisor) resume(ctx context.Context, c store.Checkpoint) error {
	if c.Err != nil {
		return c.Err
	}
	if err := s.store.Check(ctx, c); err != nil {
		return err
	}
	if s.user != nil {
		if err := s.user.check(c.Dir); err != nil {
			return preflight.AsRefusal(err)
		}
	}
	first, err := criuimage.FreePIDs(c.Dir, firstPID)
	if err != nil {
		return err
	}
	g, err := s.givenGPUs(s.environment())
	if err != nil {
		return err
	}
	spec := sandbox.Spec{
		Hide:     g.hidden,
		Params:   s.driverParams(),
		Clocks:   &sandbox.Clocks{Monotonic: time.Duration(c.Clocks.Monotonic), Boottime: time.Duration(c.Clocks.Boottime)},
		FirstPID: first,
		Root:     c.RootPID,
		Terminal: s.terminal(),
	}
	if err := s.newSandbox(ctx, spec); err != nil {
		return err
	}
	restore := request{Op: opRestore, Images: c.Dir, Sandbox: s.sandbox.Dir(), Undo: s.undoFile()}
	if s.record.Adopted {
		restore.Output = s.outputPath()
	}
	over := killPatiently(ctx, s.sandbox)
	a, err := s.ask(ctx, restore)
	over()
	if err != nil {
		return errors.Join(err, s.endRestore())
	}
	for _, note := range a.Notes {
		s.say(note)
	}
	s.tellChanges(a.Changes)
	s.setRunning()
	s.tell(Event{Event: EventResumed, Checkpoint: c.Name, Message: fmt.Sprintf("%s goes on from checkpoint %s of %s", s.record.Name, c.Name, age(c))})
	return s.openRoot()
}

// endRestore ends what there is of a restore that has failed, and makes the job's files again what
// they were before it.
func (s *supervisor) endRestore() error {
	if err := s.endSandbox(); err != nil {
		return err
	}
	return s.undoFiles()
}

// undoFile is where a restore notes how to undo what it does to the files of a job. If the disk of
// the job is full, that is in the run directory, by when the job began: whoever undoes it may know
// the job's directory by another path.
func undoFile(runDir, dir string, begun time.Time) files.UndoFile {
	return files.UndoFile{
		Path:  filepath.Join(dir, undoName),
		Spare: filepath.Join(runDir, fmt.Sprintf("undo-%d.json", begun.UnixNano())),
	}
}

func (s *supervisor) undoFile() files.UndoFile {
	return undoFile(s.hook.Config.RunDir, s.Dir, s.record.Begun)
}

const undoName = "undo.json"

// undoFiles undoes what a restore did to the job's files that did not come to its end. Nothing of
// the job runs.
func (s *supervisor) undoFiles() error {
	left, err := files.Undo(s.undoFile())
	s.tellChanges(left)
	return err
}

// forgetUndo notes that the job goes on with its files as they are.
func (s *supervisor) forgetUndo() {
	if err := files.Forget(s.undoFile()); err != nil {
		s.say(err.Error())
	}
}

// UndoFiles undoes what a restore did to the files of a job that is not resumed here.
func UndoFiles(runDir, dir string) error {
	of, err := Describe(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, err = files.Undo(undoFile(runDir, dir, of.Begun))
	return err
}

// age says when a checkpoint was made.
func age(c store.Checkpoint) string { return c.CreatedAt.Local().Format(time.DateTime) }

// called names a checkpoint, with its age if that is known.
func called(c store.Checkpoint) string {
	if c.Err != nil {
		return c.Name
	}
	return c.Name + " of " + age(c)
}
