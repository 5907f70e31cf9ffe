package jobs

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/preflight"
	"cucriu/internal/criuimage"
	"cucriu/internal/jobs/files"
)

// RestoreCut is [checkpoint.Restore] that first cuts files which the job was writing at their end
// back to their sizes at the dump, if cut is set. What is newer is kept beside each of them. If the
// restore fails, this is undone; whoever is killed, the next one undoes it.
func RestoreCut(ctx context.Context, hook *hooks.Hook, dir string, options checkpoint.Options, cut bool) (checkpoint.Result, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return checkpoint.Result{}, preflight.AsRefusal(err)
	}
	record := files.UndoFile{Path: filepath.Join(dir, "cucriu-"+undoName)}
	if _, err := os.Lstat(record.Path); err != nil && !cut {
		return checkpoint.Restore(ctx, hook, dir, options)
	}
	findings, err := checkpoint.CheckRestore(ctx, hook, dir, nil)
	if err != nil || findings.Has(preflight.FindingPIDTaken) {
		return checkpoint.Restore(ctx, hook, dir, options) // which refuses it: the job may run already
	}
	if err := undoCut(hook, record); err != nil {
		return checkpoint.Result{}, preflight.AsRefusal(err)
	}
	var changes []files.Change
	if cut {
		if changes, err = files.CutBack(ctx, grown(dir), files.PutBackOptions{Undo: record}); err != nil {
			return checkpoint.Result{}, errors.Join(err, undoCut(hook, record))
		}
	}
	result, err := checkpoint.Restore(ctx, hook, dir, options)
	switch {
	case errors.Is(err, hooks.ErrNotBack): // some of its processes are still there
		return result, err
	case err != nil:
		return result, errors.Join(err, undoCut(hook, record))
	}
	for _, change := range changes {
		hook.Log.Warn(change.String())
	}
	return result, files.Forget(record)
}

func undoCut(hook *hooks.Hook, record files.UndoFile) error {
	left, err := files.Undo(record)
	for _, change := range left {
		hook.Log.Warn(change.String())
	}
	return err
}

// grown returns the files that the job was writing at their end, with their sizes at the dump, and
// that are longer now.
func grown(dir string) map[string]int64 {
	sizes := make(map[string]int64)
	all, _ := criuimage.Files(dir) // the restore says what is wrong with it
	for _, f := range all {
		if info, err := os.Lstat(f.Path); err == nil && f.AtEnd && f.Size >= 0 && info.Mode().IsRegular() && info.Size() > f.Size {
			sizes[f.Path] = f.Size
		}
	}
	return sizes
}
