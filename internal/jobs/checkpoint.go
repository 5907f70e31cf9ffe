package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/failpoint"
	"cucriu/internal/image"
	"cucriu/internal/jobs/files"
	"cucriu/internal/jobs/inside"
	"cucriu/internal/jobs/store"
	"cucriu/internal/proc"
	"cucriu/internal/units"
)

// checkpointer makes checkpoints of the running job, and keeps the store in order.
type checkpointer struct {
	*core
	costs    costs
	failures int // attempts at a checkpoint since the last one
	trial    trial
	// tidy is the context of what a preemption does not wait for, and hasten ends it.
	tidy   context.Context
	hasten context.CancelFunc
}

// checkpoint makes a checkpoint of the running job, and tells how that went.
func (s *checkpointer) checkpoint(ctx context.Context, reason string) (store.Checkpoint, error) {
	c, err := s.makeCheckpoint(ctx, reason, false)
	if err != nil {
		s.tell(Event{Event: EventFailed, Message: fmt.Sprintf("no checkpoint: %v", err)})
		return c, err
	}
	s.tellCheckpoint(c)
	if err := s.verify(c); err != nil {
		return c, err
	}
	s.try(c)
	s.prune()
	return c, nil
}

// last makes a checkpoint that ends the job. request is what was asked for: to stop, or to move; empty
// at a preemption.
func (s *checkpointer) last(ctx context.Context, reason, request string) (store.Checkpoint, error) {
	defer s.killPatiently(ctx)()
	c, err := s.makeCheckpoint(ctx, reason, true)
	if err == nil {
		s.tellCheckpoint(c)
		return c, nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	message := fmt.Sprintf("no last checkpoint: %v", err)
	if request != "" {
		message = fmt.Sprintf("asked to %s, but %s", request, message)
	}
	s.tell(Event{Event: EventFailed, Message: message})
	return c, err
}

// lookAfter is how long a job has run when it is looked at for the first time. By then most use
// what they use.
const lookAfter = time.Minute

// look finds out, long before the first checkpoint, whether the job can be dumped.
func (s *checkpointer) look(ctx context.Context) {
	_, err := s.ask(ctx, inside.Request{Op: inside.Check, Root: s.sandbox.Root, Files: s.files()})
	if err != nil && ctx.Err() == nil && s.root != nil && s.root.Alive() {
		s.tell(Event{Event: EventFailed, Message: fmt.Sprintf("the job runs, but no checkpoint could be made of it as it is now: %v", err)})
	}
}

func (s *checkpointer) tellCheckpoint(c store.Checkpoint) {
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
func (s *checkpointer) makeCheckpoint(ctx context.Context, reason string, end bool) (store.Checkpoint, error) {
	s.trial.cut()
	var c store.Checkpoint
	var err error
	for _, base := range stages(s.Stage, memoryStage(s.runDir), s.sandbox, end) {
		c, err = s.checkpointBy(ctx, base, reason, end)
		if err == nil || !preflight.Refused(err) {
			break
		}
	}
	return c, err
}

func (s *checkpointer) checkpointBy(ctx context.Context, base, reason string, end bool) (store.Checkpoint, error) {
	begun := time.Now()
	inMemory := base == s.sandbox.InsidePath(memoryStage(s.runDir))
	var whose *proc.Ident
	if inMemory { // a path by the pid of the sandbox's first process
		init := s.sandbox.Init()
		whose = &init
	}
	stage, err := s.store.StageDir(base, whose)
	if err != nil {
		return store.Checkpoint{}, err
	}
	images := filepath.Join(stage, imageName) // as the sandbox knows it
	if inMemory {
		images = filepath.Join(memoryStage(s.runDir), strings.TrimPrefix(images, base))
	}
	keep := false
	dumped := false
	defer func() {
		// An image that was cut off on its way to the store becomes a checkpoint next time. In
		// memory it is gone by then.
		if keep || dumped && ctx.Err() != nil && !inMemory {
			return
		}
		s.sayError(s.store.RemoveStage(stage))
	}()
	of := inside.Staged{Begun: begun.UTC(), Reason: reason, Root: s.sandbox.Root}
	if of.BootID, err = proc.BootID(); err != nil {
		return store.Checkpoint{}, err
	}
	// Held open, a stage in memory stays although the sandbox may end with the job.
	held, err := os.Open(stage)
	if err != nil {
		return store.Checkpoint{}, err
	}
	defer held.Close()
	made := fmt.Sprintf("/proc/self/fd/%d/%s", held.Fd(), imageName)
	if end {
		s.setLeaving()
	}
	expected, _ := s.costs.expected()
	a, err := s.ask(ctx, inside.Request{
		Op: inside.Dump, Images: images, Root: of.Root, Sandbox: s.sandbox.Dir, NoTerminal: s.sandbox.IsAdopted(),
		End: end, Files: s.files(), Staged: of, Expected: expected.total,
	})
	if err != nil {
		// The image has its name before the job is ended, and one that is not complete may hold
		// what the job must be brought back from.
		_, readErr := inside.ReadStaged(made)
		keep = a.NotBack || end && readErr == nil
		return store.Checkpoint{}, err
	}
	keep, dumped = end, true // if the job has ended, this is all that there is of its last interval
	of.Clocks = a.Clocks
	info, err := describe(made, filepath.Base(s.record.Command[0]), of)
	if err != nil {
		return store.Checkpoint{}, err
	}
	info.Pause, info.Duration = a.Result.Downtime, time.Since(begun)
	if err := failpoint.Hit(ctx, "jobs.staged", 0); err != nil {
		return store.Checkpoint{}, err
	}
	defer s.tellIfSlow("the way of a checkpoint to the store", expected.total, inUs)()
	if err := files.Sync(ctx, made); err != nil {
		return store.Checkpoint{}, err
	}
	c, err := s.store.Publish(ctx, made, info, nil)
	if err != nil && end {
		return c, fmt.Errorf("%w; the image is whole, and the same command on this host makes a checkpoint of it", err)
	}
	if err == nil {
		keep, dumped = false, false
		s.costs = s.costs.add(cost{pause: c.Pause, total: time.Since(begun)})
	}
	return c, err
}

// describe says what a checkpoint of an image is.
func describe(images, command string, of inside.Staged) (store.Info, error) {
	info := store.Info{
		CreatedAt: of.Begun, Reason: of.Reason, Command: command, RootPID: of.Root,
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

// verifiers is how many threads read a checkpoint again: few, for the job's sake.
const verifiers = 2

// verify reads a checkpoint again from the disk. Only then may older ones be removed.
func (s *checkpointer) verify(c store.Checkpoint) error {
	expected, _ := s.costs.expected()
	over := s.tellIfSlow("reading checkpoint "+c.Name+" again", expected.total, inUs)
	err := s.store.Verify(s.tidy, c, verifiers, nil)
	over()
	if err != nil && s.tidy.Err() == nil {
		s.tell(Event{Event: EventFailed, Checkpoint: c.Name, Message: fmt.Sprintf("checkpoint %s is not what was written: %v", c.Name, err)})
	}
	return err
}

// tidyUp does what the last run had no time for: its last checkpoint is verified, and older ones
// are removed.
func (s *checkpointer) tidyUp() {
	all, err := s.store.Checkpoints()
	if err != nil || len(all) == 0 {
		return
	}
	if newest := all[len(all)-1]; newest.Err == nil && !newest.Verified && s.verify(newest) != nil {
		return
	}
	s.prune()
}

// prune removes checkpoints that are no longer to be kept.
func (s *checkpointer) prune() {
	_, err := s.store.Prune(s.tidy, store.Policy{Keep: s.Keep, MaxBytes: s.MaxBytes})
	if err != nil && s.tidy.Err() == nil {
		s.tell(Event{Event: EventFailed, Message: fmt.Sprintf("old checkpoints are not removed: %v", err)})
	}
}
