package jobs

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs/files"
)

// CheckRestore is [checkpoint.CheckRestore] for an image that may be a checkpoint of a long job,
// whose files are put back before it is restored, and whose pids are those of a new sandbox, where
// all are free.
func CheckRestore(ctx context.Context, hook *hooks.Hook, dir string) (preflight.Findings, error) {
	except, err := files.Covered(dir)
	switch {
	case errors.As(err, new(*files.DamagedError)):
		return preflight.Findings{preflight.DamagedFinding(err)}, nil
	case err != nil: // there is none
		return checkpoint.CheckRestore(ctx, hook, dir, nil)
	}
	findings, err := checkpoint.CheckRestore(ctx, hook, dir, exceptOwn(dir, except))
	findings = slices.DeleteFunc(findings, func(f preflight.Finding) bool { return f.Name == preflight.FindingPIDTaken })
	return append(findings, putBackFindings(ctx, dir)...), err
}

// CheckFiles finds what is not as it was at a checkpoint of a long job, of the files and directories
// that it needs as they were.
func CheckFiles(ctx context.Context, dir string) (preflight.Findings, error) {
	except, err := files.Covered(dir)
	if err != nil {
		return nil, err
	}
	findings, err := checkpoint.FileFindings(dir, exceptOwn(dir, except))
	return append(findings, putBackFindings(ctx, dir)...), err
}

// exceptOwn leaves out what is in the directory of the job, which may be yet to come.
func exceptOwn(dir string, except func(path string) bool) func(path string) bool {
	job := filepath.Dir(filepath.Dir(dir)) + "/"
	return func(path string) bool { return except(path) || strings.HasPrefix(path, job) }
}

func putBackFindings(ctx context.Context, dir string) (findings preflight.Findings) {
	err := files.Check(ctx, dir)
	refused := new(files.RefusedError)
	switch {
	case errors.As(err, &refused):
		for _, problem := range refused.Problems {
			findings = append(findings, preflight.Finding{
				Name: preflight.FindingFileDiffers, Severity: preflight.SeverityError, Message: problem.Error(), Remedy: "put it back as it was",
			})
		}
	case err != nil:
		findings = append(findings, preflight.DamagedFinding(err))
	}
	return findings
}
