package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"cucriu/internal/jobs/files"
	"cucriu/internal/migrate/prepare"
)

// The destination asks for files that it does not have. Package files saves them as they are at the
// standstill, and puts them back. Their paths come from the other host, and are those that the job
// has: who restores a job trusts its host with all that root can do.

// moving says which files move with the job: those that the destination has asked for, and those
// into which the job writes that were not there when it was described.
func (s *source) moving() files.Options {
	o := files.Options{Elsewhere: true, Also: make(map[string]uint64)}
	for _, n := range s.result.Report.Destination.Copies {
		o.Also[s.job.Files[n].Path] = s.job.Files[n].Identity.Inode
	}
	for _, f := range s.job.Files {
		if _, asked := o.Also[f.Path]; !asked {
			o.Except = append(o.Except, f.Path)
		}
	}
	return o
}

// foreseeFiles refuses files that could not be saved, such as those that are too large.
func (s *source) foreseeFiles(ctx context.Context) error {
	if s.options.Copy == prepare.CopyNone {
		return nil
	}
	return files.Foresee(ctx, s.job.RootPID, s.moving())
}

// later has the destination judge what the job, which stands still, uses and did not use when it was
// described.
func (s *source) later(ctx context.Context) error {
	job, err := prepare.Later(s.hook, s.job)
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
		return fmt.Errorf("what the job uses has changed since it was checked: %w", err)
	}
	s.job, s.result.Report.Destination.Copies = job, there.Copies
	return nil
}

// saveFiles adds the files to the image. The job stands still.
func (s *source) saveFiles(ctx context.Context, dir string) error {
	if s.options.Copy == prepare.CopyNone {
		return nil
	}
	return files.Save(ctx, s.job.RootPID, dir, s.moving())
}

// putFiles makes the files and directories on this host that it has asked for.
func (d *destination) putFiles(ctx context.Context, dir string) error {
	if d.copies == prepare.CopyNone {
		return nil
	}
	making := func(m files.Made) error {
		return errors.Join(d.made.note(m), reach(ctx, "receive.making"))
	}
	var makes []prepare.Directory
	for _, n := range d.judgement.Makes {
		makes = append(makes, d.job.SocketDirectories[n])
	}
	slices.SortFunc(makes, func(a, b prepare.Directory) int { return cmp.Compare(a.Path, b.Path) }) // one may be in another
	for _, m := range makes {
		if err := files.MakeDirectory(m.Path, m.Mode, uint32(m.UID), uint32(m.GID), making); err != nil {
			return err
		}
	}
	changes, err := files.PutBack(ctx, dir, files.PutBackOptions{OnlyMissing: d.copies == prepare.CopyMissing, Making: making})
	for _, change := range changes {
		if change.Kept != "" {
			d.hook.Log.Info(change.String())
		}
	}
	return errors.Join(err, reach(ctx, "receive.put"))
}
