package jobs

import (
	"context"

	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/files"
)

// checkNames fails if an image was made while the job's directory had another name, by which the image
// names the job's output: it cannot be restored now that the directory has its name again.
func (s *core) checkNames(images string) error {
	named, _ := criuimage.Files(images) // a restore says what is wrong with them
	var paths []string
	for _, f := range named {
		paths = append(paths, f.Path)
	}
	return files.CheckNames(images, s.seenOutput(), paths)
}

// publish makes a checkpoint of an image. One that was made while the job's directory had another name
// is refused, or given up if the job has ended: then it is all that there is of its last interval.
func (s *core) publish(ctx context.Context, images string, info store.Info, ended bool) (store.Checkpoint, error) {
	wrong := s.checkNames(images)
	if wrong != nil && !ended {
		return store.Checkpoint{}, wrong
	}
	if err := s.addOurs(images); err != nil {
		return store.Checkpoint{}, err
	}
	c, err := s.store.Publish(ctx, images, info)
	if err == nil && wrong != nil {
		s.tell(Event{Event: EventFailed, Checkpoint: c.Name, Message: "checkpoint " + c.Name + " is set aside: " + wrong.Error()})
		err = s.store.GiveUp(c.Name, wrong)
	}
	return c, err
}
