package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/inside"
	"cucriu/internal/proc"
)

// A supervisor that is killed may leave a complete image in a staging directory, which may be all
// that there is of the job's last interval. The next one makes a checkpoint of it.

// imageName is the image directory in a staging directory.
const imageName = "image"

// saveStaged makes checkpoints of the complete images that an earlier supervisor has left, and returns
// the staging directories of those. It fails if that may go better another time.
func (s *starter) saveStaged(ctx context.Context) (saved []string, err error) {
	dirs, err := s.store.LeftStages()
	if err != nil {
		return nil, fmt.Errorf("what an earlier supervisor has left cannot be looked at: %w", err)
	}
	found := make(map[string]inside.Staged)
	for _, dir := range dirs {
		images := filepath.Join(dir, imageName)
		of, err := inside.ReadStaged(images)
		if err == nil {
			found[images] = of
		} else if !errors.Is(err, fs.ErrNotExist) {
			s.say(fmt.Sprintf("%s is no image: %v", images, err))
		}
	}
	for _, images := range slices.SortedFunc(maps.Keys(found), func(a, b string) int { return found[a].Begun.Compare(found[b].Begun) }) {
		if err := s.save(ctx, images, found[images]); err != nil {
			err = fmt.Errorf("the image that an earlier supervisor has left in %s does not become a checkpoint: %w", images, err)
			if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EIO) || ctx.Err() != nil {
				return saved, err
			}
			s.tell(Event{Event: EventFailed, Message: err.Error()})
			continue
		}
		saved = append(saved, filepath.Dir(images))
	}
	return saved, nil
}

// save makes a checkpoint of an image, unless it is one already.
func (s *starter) save(ctx context.Context, images string, of inside.Staged) error {
	boot, err := proc.BootID()
	if err != nil {
		return err
	}
	// One in the job's directory is on the disk, complete: it had got its name.
	if of.BootID != boot && !strings.HasPrefix(images, s.Dir+"/") {
		return errors.New("the host was booted since, and it may not be whole")
	}
	all, err := s.store.Checkpoints()
	if err != nil {
		return err
	}
	for _, c := range all {
		if !of.Begun.After(c.CreatedAt) {
			return nil
		}
	}
	info, err := describe(images, filepath.Base(s.record.Command[0]), of)
	if err != nil {
		return err
	}
	c, err := s.store.Publish(ctx, images, info, nil)
	if err == nil {
		s.tell(Event{Event: EventCheckpoint, Checkpoint: c.Name, Bytes: c.Bytes, NewBytes: c.New, Message: fmt.Sprintf("checkpoint %s is what an earlier supervisor had staged", c.Name)})
	}
	return err
}
