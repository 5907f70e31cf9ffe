package jobs

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs/inside"
	"cucriu/internal/jobs/job"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/files"
	"cucriu/internal/kit/rundir"
	"cucriu/internal/kit/twice"
)

// RestoreCut is [checkpoint.Restore] that first cuts files which the job was writing at their end
// back to their sizes at the dump, if cut is set. What is newer is kept beside each of them. If the
// restore fails, this is undone; whoever is killed, the next one undoes it.
func RestoreCut(ctx context.Context, hook *hooks.Hook, dir string, options checkpoint.Options, cut bool) (checkpoint.Result, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return checkpoint.Result{}, preflight.AsRefusal(err)
	}
	var asItWas twice.Start // the job that the image was made of, in the pid namespace of this program or of the image
	if err := cmp.Or(job.RefuseDirectory(dir), twice.RefuseKept(dir, asItWas)); err != nil {
		return checkpoint.Result{}, preflight.AsRefusal(err)
	}
	if of, err := inside.ReadStaged(dir); err == nil && len(of.Private) > 0 {
		return checkpoint.Result{}, preflight.AsRefusal(fault.New(dir+" is of a job that has files of its own in "+
			strings.Join(of.Private, ", ")+", and would be restored with those of the host",
			"start a job from it: cucriu run --dir DIR --image "+dir))
	}
	img := store.OpenImage(dir)
	lock, err := job.LockStart(img, asItWas)
	if err != nil {
		return checkpoint.Result{}, preflight.AsRefusal(err)
	}
	defer lock.Close() // nil: nothing was locked
	options.CheckImage = img.Check
	records := cutRecords(hook.Config.RunDir, img)
	isNoted := func(record files.UndoFile) bool { _, err := os.Lstat(record.Path); return err == nil }
	if !cut && !slices.ContainsFunc(records, isNoted) {
		return checkpoint.Restore(ctx, hook, dir, options)
	}
	findings, err := checkpoint.CheckRestore(ctx, hook, dir, nil)
	if err != nil || findings.Has(preflight.FindingPIDTaken) {
		return checkpoint.Restore(ctx, hook, dir, options) // which refuses it: the job may run already
	}
	for _, record := range records {
		if err := undoCut(hook, record); err != nil {
			return checkpoint.Result{}, preflight.AsRefusal(err)
		}
	}
	record := records[len(records)-1]
	var changes []files.Change
	if cut {
		if _, err := rundir.Make(hook.Config.RunDir, cutsDir); err != nil {
			return checkpoint.Result{}, preflight.AsRefusal(err)
		}
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

const cutsDir = "cut-logs" // in the run directory

// cutRecords returns where the records may be that say how to undo a cut: those of earlier versions, and last the one
// to write. An image is not written to; it may be on a read-only volume. The directory of a log would not do: who can
// write there could have this program, as root, change and remove any file. The run directory is gone after a reboot.
// Then no restore is under way, and nothing is lost: a log is as it was, or has its size at the dump, and what was
// newer is beside it as NAME.cucriu-TIME, as after a restore that succeeded. But no later restore joins the two again.
func cutRecords(runDir string, img *image.Image) []files.UndoFile {
	return []files.UndoFile{
		{Path: filepath.Join(img.Dir(), "cucriu-"+undoName)},
		{Path: filepath.Join(runDir, cutsDir, Key(string(job.Of(img)))+".json")},
	}
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

// CheckRestore is [checkpoint.CheckRestore] for an image that may be a checkpoint of a long job,
// whose files are put back before it is restored, and whose pids are those of a new sandbox, where
// all are free.
func CheckRestore(ctx context.Context, hook *hooks.Hook, dir string) (preflight.Findings, error) {
	except, err := files.Covered(dir)
	switch {
	case errors.As(err, new(*files.DamagedError)):
		return preflight.Findings{preflight.Found(preflight.FindingImage, err)}, nil
	case err != nil: // there is none
		return checkpoint.CheckRestore(ctx, hook, dir, nil)
	}
	findings, err := checkpoint.CheckRestore(ctx, hook, dir, exceptOwn(dir, except))
	of, ofErr := inside.ReadStaged(dir)
	findings = slices.DeleteFunc(findings, func(f preflight.Finding) bool {
		return f.Name == preflight.FindingPIDTaken || f.Name == preflight.FindingTCPAddress && of.OwnNetwork
	})
	if ofErr == nil && len(of.Private) > 0 { // only the sandbox has its files
		return findings, err
	}
	return append(findings, putBackFindings(ctx, dir)...), err
}

// checkFiles finds what is not as it was at a checkpoint of a long job, of the files and directories
// that it needs as they were.
func checkFiles(ctx context.Context, dir string) (preflight.Findings, error) {
	except, err := files.Covered(dir)
	if err != nil {
		return nil, err
	}
	findings, err := checkpoint.FileFindings(dir, exceptOwn(dir, except))
	if of, ofErr := inside.ReadStaged(dir); ofErr == nil && len(of.Private) > 0 { // only the sandbox has its files
		return findings, err
	}
	return append(findings, putBackFindings(ctx, dir)...), err
}

// exceptOwn leaves out what is in the directory of the job, which may be yet to come.
func exceptOwn(dir string, except func(path string) bool) func(path string) bool {
	of, _ := inside.ReadStaged(dir) // an image that cannot be read has other findings
	own := append([]string{filepath.Dir(filepath.Dir(dir)), of.Dir, aboutDir}, of.Private...)
	return func(path string) bool {
		return except(path) || slices.ContainsFunc(own, func(dir string) bool {
			return dir != "" && dir != "/" && isBelow(path, dir)
		})
	}
}

func putBackFindings(ctx context.Context, dir string) (findings preflight.Findings) {
	err := files.Check(ctx, dir)
	refused := new(files.RefusedError)
	switch {
	case errors.As(err, &refused):
		for _, problem := range refused.Problems {
			findings = append(findings, preflight.New(preflight.FindingFileDiffers, problem.Error(), "put the file back as it was at the checkpoint"))
		}
	case err != nil:
		findings = append(findings, preflight.Found(preflight.FindingImage, err))
	}
	return findings
}
