package migrate

import (
	"context"
	"errors"
	"fmt"

	"cucriu/internal/kit/files"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/migrate/prepare"
)

// The destination asks for files that it does not have. Package files saves them as they are at the
// standstill, and puts them back. Their paths come from the other host, and are those that the job
// has: who restores a job trusts its host with all that root can do.

// moving says which files move with the job: those that the destination has asked for, and those
// into which the job writes that were not there when it was described.
func (s *treeSource) moving() files.Options {
	o := files.Options{Elsewhere: true, Also: make(map[string]uint64)}
	for _, n := range s.result.Report.Destination.Copies {
		o.Also[s.of.Files[n].Path] = s.of.Files[n].Identity.Inode
	}
	for _, f := range s.of.Files {
		if _, asked := o.Also[f.Path]; !asked {
			o.Except = append(o.Except, f.Path)
		}
	}
	return o
}

// foreseeFiles refuses files that could not be saved, such as those that are too large.
func (s *treeSource) foreseeFiles(ctx context.Context) error {
	if s.options.Copy == prepare.CopyNone {
		return nil
	}
	return files.Foresee(ctx, s.of.RootPID, s.moving())
}

// later has the destination judge what the job, which is paused, uses and did not use when it was
// described.
func (s *treeSource) later(ctx context.Context, truth *inventory.Tree) error {
	job, err := prepare.Later(s.hook, s.of, truth)
	if job == nil || err != nil {
		return err
	}
	if err := s.remote.Send(sayLater, laterMessage{job}); err != nil {
		return err
	}
	there := new(prepare.Judgement)
	if err := s.remote.expect(ctx, sayJudged, there); err != nil {
		return err
	}
	if err := errors.Join(there.Validate(job), there.Err()); err != nil {
		return fmt.Errorf("the resources of the job have changed since they were checked: %w", err)
	}
	s.of, s.result.Report.Destination.Copies = job, there.Copies
	return nil
}

// saveFiles adds the files to the image. The job is paused.
func (s *treeSource) saveFiles(ctx context.Context, truth *inventory.Tree, dir string) error {
	if s.options.Copy == prepare.CopyNone {
		return nil
	}
	return files.Save(ctx, truth, dir, s.moving())
}
