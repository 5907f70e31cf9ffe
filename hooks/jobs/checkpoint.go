package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/image"
	"cucriu/hooks/jobs/files"
	"cucriu/hooks/jobs/store"
	"cucriu/internal/failpoint"
	"cucriu/internal/units"
)

// checkpoint makes a checkpoint of the running job, and tells how that went.
func (s *supervisor) checkpoint(ctx context.Context, reason string) error {
	c, err := s.makeCheckpoint(ctx, reason, false)
	if err != nil {
		s.tell(Event{Event: EventFailed, Message: fmt.Sprintf("no checkpoint: %v", err)})
		return err
	}
	s.tellCheckpoint(c)
	if err := s.verify(ctx, c); err != nil {
		return err
	}
	s.prune(ctx)
	return nil
}

func (s *supervisor) tellCheckpoint(c store.Checkpoint) {
	s.tell(Event{
		Event: EventCheckpoint, Checkpoint: c.Name, Pause: c.Pause, Duration: c.Duration, Bytes: c.Bytes, NewBytes: c.New,
		Message: fmt.Sprintf("checkpoint %s: the job stood still for %v; %s, of which %s new", c.Name, c.Pause.Round(time.Millisecond), units.Size(c.Bytes), units.Size(c.New)),
	})
}

// makeCheckpoint dumps the job into a staging directory and brings the image to the store. With
// end it ends the job once its image is complete.
func (s *supervisor) makeCheckpoint(ctx context.Context, reason string, end bool) (_ store.Checkpoint, err error) {
	begun := time.Now()
	stage, err := s.store.StageDir("")
	if err != nil {
		return store.Checkpoint{}, err
	}
	keep := false
	defer func() {
		if !keep {
			err = errors.Join(err, s.store.RemoveStage(stage))
		}
	}()
	images := filepath.Join(stage, imageName)
	of, err := s.newStaged(begun, reason)
	if err != nil {
		return store.Checkpoint{}, err
	}
	if end {
		if err := s.place.SetLeaving(); err != nil {
			s.say(fmt.Sprintf("the place's record cannot be written: %v", err))
		}
	}
	a, err := s.ask(ctx, request{Op: opDump, Images: images, Root: s.place.Root(), End: end, Files: s.files(), Staged: of})
	if err != nil {
		return store.Checkpoint{}, err
	}
	of.Clocks = a.Clocks
	info, err := s.describe(images, of)
	if err != nil {
		return store.Checkpoint{}, err
	}
	info.Pause, info.Duration = a.Result.Downtime, time.Since(begun)
	if err := failpoint.Hit(ctx, "jobs.staged", 0); err != nil {
		return store.Checkpoint{}, err
	}
	c, err := s.store.Publish(ctx, images, info, nil)
	if err != nil && end {
		keep = true // the job has ended: this is all that there is of its last interval
		err = fmt.Errorf("%w; the image is whole, and the same command on this host makes a checkpoint of it", err)
	}
	if err == nil {
		s.last = append(s.last, cost{pause: c.Pause, total: time.Since(begun)})
		s.last = s.last[max(0, len(s.last)-5):]
	}
	return c, err
}

func (s *supervisor) describe(images string, of staged) (store.Info, error) {
	info := store.Info{
		CreatedAt: of.Begun, Reason: of.Reason,
		Command: filepath.Base(s.record.Command[0]), RootPID: of.Root,
		Clocks: store.Clocks{Monotonic: int64(of.Clocks.Monotonic), Boottime: int64(of.Clocks.Boottime)},
	}
	var err error
	if info.Host, err = os.Hostname(); err != nil {
		return info, err
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return info, err
	}
	info.Kernel = unix.ByteSliceToString(uts.Release[:])
	m, err := image.ReadManifest(images)
	if errors.Is(err, os.ErrNotExist) {
		return info, nil // no process uses CUDA
	}
	if err != nil {
		return info, err
	}
	info.Driver = m.DriverVersion
	info.GPUs = m.GPUs()
	return info, nil
}

// files says which files of the job belong to a checkpoint. /dev/shm is the place's own.
func (s *supervisor) files() files.Options {
	return files.Options{Except: []string{s.outputPath()}, Shm: "/dev/shm"}
}

// verifiers is how many threads read a checkpoint again: few, for the job's sake.
const verifiers = 2

// verify reads a checkpoint again from the disk. Only then may older ones be removed.
func (s *supervisor) verify(ctx context.Context, c store.Checkpoint) error {
	err := s.store.Verify(ctx, c, verifiers, nil)
	if err != nil && ctx.Err() == nil {
		s.tell(Event{Event: EventFailed, Checkpoint: c.Name, Message: fmt.Sprintf("checkpoint %s is not what was written: %v", c.Name, err)})
	}
	return err
}

// prune removes checkpoints that are no longer to be kept.
func (s *supervisor) prune(ctx context.Context) {
	_, err := s.store.Prune(ctx, store.Policy{Keep: s.Keep, MaxBytes: s.MaxBytes})
	if err != nil {
		s.tell(Event{Event: EventFailed, Message: fmt.Sprintf("old checkpoints are not removed: %v", err)})
	}
}
