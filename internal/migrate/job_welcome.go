package migrate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"cucriu/hooks/preflight"
	"cucriu/internal/jobs"
	"cucriu/internal/jobs/store"
	"cucriu/internal/migrate/wire"
)

// welcome judges whether the job can come. Nothing is touched.
func (d *jobDestination) welcome(m wire.Message) error {
	if err := m.Decode(&d.job); err != nil {
		return err
	}
	if err := d.job.validate(); err != nil {
		return preflight.AsRefusal(err)
	}
	before, err := mayArrive(d.job)
	if err != nil {
		return preflight.AsRefusal(err)
	}
	var has jobWelcome
	if before.State == jobs.MoveLeft {
		if has.Have, err = have(d.job.Dir); err != nil {
			return preflight.AsRefusal(err)
		}
	}
	room, err := free(existingParent(d.job.Dir))
	if err == nil && room < d.job.Bytes && len(has.Have) == 0 {
		err = fmt.Errorf("the job's newest checkpoint has %d bytes, and the disk of %s has room for %d", d.job.Bytes, d.job.Dir, room)
	}
	if err != nil {
		return preflight.AsRefusal(err)
	}
	return d.Send(sayWelcome, has)
}

// have lists the checkpoints of a directory, without their files.
func have(dir string) ([]store.Listed, error) {
	view, err := store.View(dir)
	if err != nil {
		return nil, err
	}
	all, err := view.List(func(string, uint32) bool { return true })
	for i := range all {
		all[i].Files = nil
	}
	return all, err
}

// mayArrive fails unless the directory of a job is missing or empty, or the job has left it. It
// returns the record of an earlier move.
func mayArrive(job jobMessage) (before jobs.Move, err error) {
	if err := checkParents(job.Dir); err != nil {
		return before, err
	}
	entries, err := os.ReadDir(job.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return before, nil
	}
	if err != nil {
		return before, fmt.Errorf("job directory: %w", err)
	}
	if len(entries) == 0 {
		_, err = store.View(job.Dir) // is it root's alone?
		return before, err
	}
	view, err := store.View(job.Dir)
	if err != nil {
		return before, err
	}
	if owner, err := view.Owner(); err == nil && owner.Token != "" && owner.Token == job.Owner {
		return before, fmt.Errorf("both hosts see the same %s: end the job with cucriu jobs stop there, and give the same cucriu run here; nothing has to be sent", job.Dir)
	}
	if before, err = jobs.ReadMove(job.Dir); err != nil {
		return before, err
	}
	if before.State == jobs.MovePromised {
		return before, &jobs.ElsewhereError{Dir: job.Dir, Move: before}
	}
	if before.State == jobs.MoveArriving || before.State == jobs.MoveNone && isEmptyStore(job.Dir) == nil {
		return before, nil
	}
	of, err := jobs.Describe(job.Dir)
	if err != nil || !of.Begun.Equal(job.Begun) {
		return before, fmt.Errorf("%s is not empty, and not the directory of this job: remove it, if it is not needed", job.Dir)
	}
	if before.State != jobs.MoveLeft {
		return before, fmt.Errorf("%s has the same job, which has not left from here (see cucriu jobs show %[1]s): end it and remove the directory, if it is not needed", job.Dir)
	}
	return before, nil
}

// isEmptyStore returns an error if a directory has anything but what a destination makes there before
// it records the move: it may have been killed in between.
func isEmptyStore(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !slices.Contains([]string{"lock", "owner.json", "checkpoints", "staged", "move.lock"}, entry.Name()) {
			return fmt.Errorf("%s is not empty any more: there is %s", dir, entry.Name())
		}
	}
	all, err := have(dir)
	if err == nil && len(all) > 0 {
		err = fmt.Errorf("%s is not empty any more: it has checkpoints", dir)
	}
	return err
}

// checkParents refuses a directory that others could exchange for another one.
func checkParents(dir string) error {
	for dir != "/" {
		dir = filepath.Dir(dir)
		info, err := os.Lstat(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("job directory: %w", err)
		}
		stat, known := info.Sys().(*syscall.Stat_t)
		switch {
		case info.Mode()&os.ModeSymlink != 0: // the same path there may lead elsewhere, which is the admin's business
		case !info.IsDir():
			return fmt.Errorf("job directory: %s is not a directory", dir)
		case known && stat.Uid != 0:
			return fmt.Errorf("job directory: %s belongs to user %d, who could exchange what root restores", dir, stat.Uid)
		case info.Mode().Perm()&0o022 != 0 && info.Mode()&os.ModeSticky == 0:
			return fmt.Errorf("job directory: others may write to %s, and could exchange what root restores", dir)
		}
	}
	return nil
}

func existingParent(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || dir == "/" {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}
