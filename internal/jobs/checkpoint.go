package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/failpoint"
	"cucriu/internal/image"
	"cucriu/internal/jobs/files"
	"cucriu/internal/jobs/store"
	"cucriu/internal/proc"
	"cucriu/internal/units"
)

// scheduled makes the checkpoint for which it is time, unless the job would stand still for too long.
func (s *supervisor) scheduled(ctx context.Context) error {
	if pause, is := s.tooLong(); is {
		s.tell(Event{Event: EventSkipped, Message: fmt.Sprintf("no checkpoint: the job would stand still for about %v, and may for %v (--max-pause)", pause.Round(time.Millisecond), s.MaxPause)})
		s.costs = s.costs[1:] // so that it is tried again some time
		return nil
	}
	_, err := s.checkpoint(ctx, "schedule")
	return err
}

// checkpoint makes a checkpoint of the running job, and tells how that went.
func (s *supervisor) checkpoint(ctx context.Context, reason string) (store.Checkpoint, error) {
	s.board.is(StateCheckpoint)
	defer s.board.is(StateRunning)
	c, err := s.makeCheckpoint(ctx, reason, false)
	if err != nil {
		s.tell(Event{Event: EventFailed, Message: fmt.Sprintf("no checkpoint: %v", err)})
		return c, err
	}
	s.tellCheckpoint(c)
	if err := s.verify(s.tidy, c); err != nil {
		return c, err
	}
	s.try(c)
	s.prune(s.tidy)
	return c, nil
}

// lookAfter is how long a job has run when it is looked at for the first time. By then most use
// what they use.
const lookAfter = time.Minute

// look finds out, long before the first checkpoint, whether the job can be dumped.
func (s *supervisor) look(ctx context.Context) {
	_, err := s.ask(ctx, request{Op: opCheck, Root: s.sandbox.Root(), Files: s.files()})
	if err != nil && ctx.Err() == nil && s.root != nil && s.root.Alive() {
		s.tell(Event{Event: EventFailed, Message: fmt.Sprintf("the job runs, but no checkpoint could be made of it as it is now: %v", err)})
	}
}

func (s *supervisor) tellCheckpoint(c store.Checkpoint) {
	for _, warning := range c.Warnings {
		s.tell(Event{Event: EventFailed, Checkpoint: c.Name, Message: warning})
	}
	s.tell(Event{
		Event: EventCheckpoint, Checkpoint: c.Name, Pause: c.Pause, Duration: c.Duration, Bytes: c.Bytes, NewBytes: c.New,
		Message: sayCheckpoint(c),
	})
}

func sayCheckpoint(c store.Checkpoint) string {
	return fmt.Sprintf("checkpoint %s: the job stood still for %v; %s, of which %s new", c.Name, c.Pause.Round(time.Millisecond), units.Size(c.Bytes), units.Size(c.New))
}

// makeCheckpoint dumps the job into a staging directory and brings the image to the store. With
// end it ends the job once its image is complete, so it must be on the disk then.
func (s *supervisor) makeCheckpoint(ctx context.Context, reason string, end bool) (store.Checkpoint, error) {
	s.trial.cut()
	var c store.Checkpoint
	var err error
	for _, base := range s.stages(end) {
		c, err = s.checkpointBy(ctx, base, reason, end)
		if err == nil || !preflight.Refused(err) {
			break
		}
	}
	return c, err
}

func (s *supervisor) checkpointBy(ctx context.Context, base, reason string, end bool) (store.Checkpoint, error) {
	begun := time.Now()
	var whose *proc.Ident
	if s.insidePath(base) != base { // a path by the pid of the sandbox's first process
		init := s.sandbox.Init()
		whose = &init
	}
	stage, err := s.store.StageDir(base, whose)
	if err != nil {
		return store.Checkpoint{}, err
	}
	keep := false
	dumped := false
	defer func() {
		// An image that was cut off on its way to the store becomes a checkpoint next time. In
		// memory it is gone by then.
		if keep || dumped && ctx.Err() != nil && s.insidePath(stage) == stage {
			return
		}
		if err := s.store.RemoveStage(stage); err != nil {
			s.say(err.Error())
		}
	}()
	of, err := s.newStaged(begun, reason)
	if err != nil {
		return store.Checkpoint{}, err
	}
	// Held open, a stage in memory stays although the sandbox may end with the job.
	held, err := os.Open(stage)
	if err != nil {
		return store.Checkpoint{}, err
	}
	defer held.Close()
	images := fmt.Sprintf("/proc/self/fd/%d/%s", held.Fd(), imageName)
	if end {
		s.ending.Store(true)
		defer s.ending.Store(false)
		if err := s.sandbox.SetLeaving(); err != nil {
			s.say(fmt.Sprintf("the sandbox's record cannot be written: %v", err))
		}
	}
	a, err := s.ask(ctx, request{Op: opDump, Images: filepath.Join(s.insidePath(stage), imageName), Root: s.sandbox.Root(), Sandbox: s.sandbox.Dir(), NoTerminal: s.sandbox.IsAdopted(), End: end, Files: s.files(), Staged: of})
	if err != nil {
		// The image has its name before the job is ended, and one that is not complete may hold
		// what the job must be brought back from.
		_, readErr := readStaged(images)
		keep = a.NotBack || end && readErr == nil
		return store.Checkpoint{}, err
	}
	keep, dumped = end, true // if the job has ended, this is all that there is of its last interval
	of.Clocks = a.Clocks
	info, err := s.describe(images, of)
	if err != nil {
		return store.Checkpoint{}, err
	}
	info.Pause, info.Duration = a.Result.Downtime, time.Since(begun)
	if err := failpoint.Hit(ctx, "jobs.staged", 0); err != nil {
		return store.Checkpoint{}, err
	}
	expected, _ := s.costs.expected()
	defer s.tellIfSlow("the way of a checkpoint to the store", expected.total, inUs)()
	if err := files.Sync(ctx, images); err != nil {
		return store.Checkpoint{}, err
	}
	c, err := s.store.Publish(ctx, images, info, nil)
	if err != nil && end {
		return c, fmt.Errorf("%w; the image is whole, and the same command on this host makes a checkpoint of it", err)
	}
	if err == nil {
		keep, dumped = false, false
		s.costs = s.costs.add(cost{pause: c.Pause, total: time.Since(begun)})
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

const tmp = "/tmp"

// files says which files of the job belong to a checkpoint. The /dev/shm of a sandbox is its own.
func (s *supervisor) files() files.Options {
	o := files.Options{Limit: s.FilesLimit, Except: append([]string{s.outputPath()}, s.NotSaved...)}
	if s.sandbox != nil && !s.sandbox.IsAdopted() {
		o.Shm = "/dev/shm"
	}
	if s.PrivateTmp {
		o.PrivateTmp = tmp
	}
	return o
}

// verifiers is how many threads read a checkpoint again: few, for the job's sake.
const verifiers = 2

// verify reads a checkpoint again from the disk. Only then may older ones be removed.
func (s *supervisor) verify(ctx context.Context, c store.Checkpoint) error {
	expected, _ := s.costs.expected()
	over := s.tellIfSlow("reading checkpoint "+c.Name+" again", expected.total, inUs)
	err := s.store.Verify(ctx, c, verifiers, nil)
	over()
	if err != nil && ctx.Err() == nil {
		s.tell(Event{Event: EventFailed, Checkpoint: c.Name, Message: fmt.Sprintf("checkpoint %s is not what was written: %v", c.Name, err)})
	}
	return err
}

// tidyUp does what the last run had no time for: its last checkpoint is verified, and older ones
// are removed.
func (s *supervisor) tidyUp() {
	all, err := s.store.Checkpoints()
	if err != nil || len(all) == 0 {
		return
	}
	if newest := all[len(all)-1]; newest.Err == nil && !newest.Verified && s.verify(s.tidy, newest) != nil {
		return
	}
	s.prune(s.tidy)
}

// prune removes checkpoints that are no longer to be kept.
func (s *supervisor) prune(ctx context.Context) {
	_, err := s.store.Prune(ctx, store.Policy{Keep: s.Keep, MaxBytes: s.MaxBytes})
	if err != nil && ctx.Err() == nil {
		s.tell(Event{Event: EventFailed, Message: fmt.Sprintf("old checkpoints are not removed: %v", err)})
	}
}
