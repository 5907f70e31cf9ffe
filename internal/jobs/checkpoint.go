package jobs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/jobs/inside"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/files"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/quote"
	"cucriu/internal/kit/units"
)

// checkpointer makes checkpoints of the running job, and keeps the store in order.
type checkpointer struct {
	*core
	costs    costs
	failures int   // attempts at a checkpoint since the last one
	noRoom   int64 // what was free in Dir, in bytes, when the last one did not fit; 0 if it did
	untried  int   // checkpoints that were not tried for that since then
	trial    trial
	shared   string // files that a job from an image writes and shares, as they were said last
	// housekeeping is the context of what a preemption does not wait for but ends.
	housekeeping    context.Context
	endHousekeeping context.CancelFunc
}

const (
	onSchedule  = "schedule" // the reason of a checkpoint that nobody has asked for
	mostUntried = 7
)

// checkpoint makes a checkpoint of the running job, and tells how that went.
func (s *checkpointer) checkpoint(ctx context.Context, reason string) (store.Checkpoint, error) {
	// Else the job would be paused, and copied, for nothing. Now and then, and when asked, it is tried all the same: what is
	// new may be less by now.
	had := s.noRoom
	if reason != onSchedule || s.untried == mostUntried {
		had = 0
	}
	err := preflight.AsRefusal(s.store.Fenced())
	if err == nil {
		err = s.refuseSuspended()
	}
	if err == nil {
		err = preflight.AsRefusal(s.store.CheckRoom(had))
	}
	s.untried++
	var c store.Checkpoint
	if err == nil {
		s.untried = 0
		c, err = s.makeCheckpoint(ctx, reason, false)
	}
	if err != nil {
		if all, _ := s.store.Checkpoints(); errors.Is(err, unix.ENOSPC) && len(all) > 1 {
			err = fmt.Errorf("%w; cucriu jobs prune %s --keep 1 removes older checkpoints", err, s.name)
		}
		s.tell(Event{Event: EventFailed, Message: fmt.Sprintf("no checkpoint: %v", err)})
		s.status.note(func(l *Local) { l.Missed++ })
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
	var c store.Checkpoint
	err := s.resumeSuspended(ctx)
	if err == nil {
		c, err = s.makeCheckpoint(ctx, reason, true)
	}
	if err == nil {
		s.tellCheckpoint(c)
		return c, nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	message := fmt.Sprintf("no last checkpoint: %v", err)
	if request == "" { // whatever the dump says, the job leaves
		message = strings.ReplaceAll(message, "; the job keeps running", "")
	} else {
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
	if s.refuseSuspended() != nil { // which the state says, and not the job
		return
	}
	_, err := s.ask(ctx, inside.Request{Op: inside.Check, Root: s.sandbox.Root, Files: s.files()})
	if err != nil && ctx.Err() == nil && s.root != nil && s.root.Alive() {
		s.tell(Event{Event: EventFailed, Message: fmt.Sprintf("the job runs, but in its current state it could not be checkpointed: %v", err)})
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
	text := fmt.Sprintf("checkpoint %s: paused for %v; %s (%s written)", c.Name, c.Pause.Round(time.Millisecond), units.Size(c.Bytes), units.Size(c.New))
	if c.Unchanged > 0 {
		text += fmt.Sprintf("; %s of GPU memory unchanged, and not copied", units.Size(int64(c.Unchanged)))
	}
	return text
}

// makeCheckpoint dumps the job into a staging directory and brings the image to the store. With
// end it ends the job once its image is complete, so it must be on the disk then.
func (s *checkpointer) makeCheckpoint(ctx context.Context, reason string, end bool) (store.Checkpoint, error) {
	s.trial.cut()
	var c store.Checkpoint
	var err error
	for _, base := range stages(s.Stage, memoryStage(s.runDir), s.sandbox, end) {
		c, err = s.checkpointBy(ctx, base, reason, end)
		answered := new(insideError)
		if err == nil || !preflight.Refused(err) && !(errors.As(err, &answered) && answered.noRoom) {
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
		if s.staged == stage {
			s.store.LeaveStage(stage) // to the next begin, which may be this supervisor's
			return
		}
		if keep || dumped && ctx.Err() != nil && !inMemory {
			s.pending = append(s.pending, stage)
			return
		}
		s.sayError(s.store.RemoveStage(stage))
	}()
	of := inside.Staged{
		Begun: begun.UTC(), JobBegun: s.record.Begun, Number: 1, Reason: reason, Root: s.sandbox.Root,
		Dir: filepath.Dir(s.seenOutput()), Output: s.tail.movedFrom(s.outputPath()), OwnNetwork: s.sandbox.OwnNetwork,
	}
	if from := s.record.Image; from != nil {
		of.Private = from.Private
	}
	if of.BootID, err = proc.BootID(); err != nil {
		return store.Checkpoint{}, err
	}
	all, err := s.store.Checkpoints()
	if err != nil {
		return store.Checkpoint{}, err
	}
	if len(all) > 0 {
		of.Number = all[len(all)-1].Number() + 1
	}
	// Held open, a stage in memory stays although the sandbox may end with the job.
	held, err := os.Open(stage)
	if err != nil {
		return store.Checkpoint{}, err
	}
	defer held.Close()
	made := proc.PathIn(held, imageName)
	if end {
		s.setLeaving(true)
		defer s.killStuck(made)()
	}
	expected, _ := s.costs.expected()
	resumeProbes, err := s.probes.cut(ctx)
	if err != nil {
		return store.Checkpoint{}, err
	}
	letGo := s.hold()
	a, err := s.ask(ctx, inside.Request{
		Op: inside.Dump, Images: images, Root: of.Root, NoTerminal: s.sandbox.IsAdopted(),
		End: end, WaitAll: s.waitAll, Base: s.base(end), VerifyUnchanged: s.VerifyUnchanged,
		Files: s.files(), Staged: of, Expected: expected.total,
	})
	letGo()
	resumeProbes()
	if err != nil {
		// The image has its name before the job is ended, and one that is not complete may hold
		// what the job must be restored from.
		_, readErr := inside.ReadStaged(made)
		keep = a.NotBack || end && readErr == nil
		answered := new(insideError)
		if !errors.As(err, &answered) && !preflight.Refused(err) && ctx.Err() == nil {
			// Whoever was to bring the job back may have been killed with it. Its memory may be in the image alone. A job
			// that has ended, and its sandbox with it, needs nothing any more.
			if _, backErr := s.ask(ctx, inside.Request{Op: inside.Recover, Root: of.Root}); backErr != nil && !s.sandbox.Ends() {
				keep, err = true, errors.Join(err, backErr)
			}
		}
		return store.Checkpoint{}, err
	}
	if dumped = true; end {
		s.ended(stage)
	}
	of.Clocks = a.Clocks
	info, err := describe(made, filepath.Base(s.record.Command[0]), of)
	if err != nil {
		return store.Checkpoint{}, err
	}
	info.Pause, info.Duration, info.Unchanged = a.Result.Downtime, time.Since(begun), a.Result.Unchanged
	if err := failpoint.Hit(ctx, "jobs.staged", 0); err != nil {
		return store.Checkpoint{}, err
	}
	defer s.tellIfSlow("moving a checkpoint to the store", expected.total, ownWaitState)()
	if err := files.Sync(ctx, made); err != nil {
		return store.Checkpoint{}, err
	}
	c, err := s.publish(ctx, made, info, end)
	s.noRoom = 0
	if full := new(store.NoRoomError); errors.As(err, &full) {
		s.noRoom = full.Had
	}
	if err != nil && end && !errors.Is(err, store.ErrFenced) && (mayPass(err) || ctx.Err() != nil) {
		return c, fmt.Errorf("%w; the job has ended, and its image in %s is complete: cucriu run makes a checkpoint of it on this host and resumes the job", err, stage)
	}
	if err == nil {
		dumped, s.staged = false, ""
		s.sayShared(c)
		s.costs = s.costs.add(cost{pause: c.Pause, total: time.Since(begun)})
	}
	return c, err
}

// sayShared says once which files a job from an image was writing that are not its own: a resume puts them back,
// whoever else writes to them.
func (s *checkpointer) sayShared(c store.Checkpoint) {
	if s.record.Image == nil {
		return
	}
	written, trees, err := files.Written(c.Dir)
	if err != nil {
		return // the verification says what is wrong with it
	}
	var shared []string
	for _, path := range written {
		isIn := func(dir string) bool { return isBelow(path, dir) }
		if !slices.ContainsFunc(slices.Concat(trees, s.record.Image.own(), []string{s.Dir}), isIn) {
			shared = append(shared, path)
		}
	}
	if text := quote.Names(shared); text != s.shared {
		s.shared = text
		s.say("warning: the job writes to " + text + ", and shares that with the host: a resume puts it back, whoever else " +
			"writes to it; a job that is started from the image with --private DIR has a copy of its own")
	}
}

// base returns the checkpoint on which an image may be based; "" if it has to be complete by itself, as the last one,
// and one after a failure.
func (s *checkpointer) base(last bool) string {
	if bases, err := s.store.Bases(); err == nil && len(bases) > 0 && !last && s.failures == 0 {
		return bases[0].Dir
	}
	return ""
}

// ended notes that a dump has ended the job: all that there is of its last interval is in the image in a staging
// directory.
func (s *checkpointer) ended(stage string) {
	s.staged = stage
	s.status.note(func(l *Local) { l.WorkSince = time.Time{} })
}

// killStuck ends what is left of a job whose root process was killed during its last dump: criu waits
// for it, and nobody else ends that. Once the image is complete, the dump itself ends the job. This reads
// the image, on a disk that may hang, so it has a goroutine of its own. The caller calls over when the dump
// has ended.
func (s *checkpointer) killStuck(images string) (over func()) {
	done, stopped, at, root := make(chan struct{}), make(chan struct{}), s.sandbox, s.root
	if root == nil {
		return func() {}
	}
	go func() {
		defer close(stopped)
		looks := time.NewTicker(sandbox.FencePeriod)
		defer looks.Stop()
		for exiting := 0; exiting < maxExiting; {
			select {
			case <-done:
				return
			case <-looks.C:
			}
			if _, err := inside.ReadStaged(images); !errors.Is(err, os.ErrNotExist) || !root.Exiting() {
				exiting = 0
			} else {
				exiting++
			}
		}
		s.say("the job was killed while criu was making its last checkpoint, and criu is waiting for it: both are being killed")
		_ = at.Kill()
	}()
	return func() { close(done); <-stopped }
}

// maxExiting is how often in a row a process may be seen ending that criu keeps.
const maxExiting = 3

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
	m, err := imagedir.ReadManifest(images)
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
	over := s.tellIfSlow("reading checkpoint "+c.Name+" again", expected.total, ownWaitState)
	err := s.store.Verify(s.housekeeping, c, verifiers, nil)
	over()
	if err != nil && s.housekeeping.Err() == nil {
		s.tell(Event{Event: EventFailed, Checkpoint: c.Name, Message: fmt.Sprintf("checkpoint %s does not match what was written: %v", c.Name, err)})
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
	if newest := all[len(all)-1]; !newest.Damaged() && !newest.Verified && s.verify(newest) != nil {
		return
	}
	s.prune()
}

// prune removes checkpoints that are no longer to be kept.
func (s *checkpointer) prune() {
	_, err := s.store.Prune(s.housekeeping, store.Policy{Keep: s.Keep, MaxBytes: s.MaxBytes})
	if err != nil && s.housekeeping.Err() == nil {
		s.tell(Event{Event: EventFailed, Message: fmt.Sprintf("old checkpoints could not be removed: %v", err)})
	}
}

// leastStage is how much room a directory for images must have, in bytes.
const leastStage = 64 << 20

// checkStage finds out at the start, and not at the first checkpoint, whether images can be
// written to the directory that was asked for.
func checkStage(s *core) error {
	if s.Stage == "" || s.Stage == StageMemory || s.Stage == StageDisk {
		return nil
	}
	err := durable.CheckPath("the directory", s.Stage, 0)
	var disk unix.Statfs_t
	if err == nil {
		err = os.NewSyscallError("access", unix.Access(s.Stage, unix.W_OK))
	}
	if err == nil {
		err = os.NewSyscallError("statfs", unix.Statfs(s.Stage, &disk))
	}
	if err != nil {
		return fmt.Errorf("--stage %s: %w", s.Stage, err)
	}
	room := int64(disk.Bavail) * disk.Bsize
	if room < leastStage {
		return fmt.Errorf("--stage %s: only %s is free there, and an image needs more", s.Stage, units.Size(room))
	}
	if all, err := s.store.Checkpoints(); err == nil && len(all) > 0 && all[len(all)-1].Bytes > room {
		s.say(fmt.Sprintf("--stage %s: only %s is free there, but the newest checkpoint has %s: images go straight to %s until there is more", s.Stage, units.Size(room), units.Size(all[len(all)-1].Bytes), s.Dir))
	}
	return nil
}

// stages returns the directories below which a dump is tried to be staged, the fastest first. asked is
// what the user wants, and memory the staging directory in memory. The last image of a job that is ended
// goes to the disk at once: in memory it would be the only copy.
//
// A dump is refused, before the job is touched, if its image does not fit where it is to go.
func stages(asked, memory string, p *sandbox.Sandbox, end bool) []string {
	const disk = "" // of the store
	var fs unix.Statfs_t
	switch {
	case end || asked == StageDisk:
		return []string{disk}
	case asked != "" && asked != StageMemory:
		return []string{asked, disk}
	case unix.Statfs(p.InsidePath(memory), &fs) == nil && int64(fs.Type) == unix.TMPFS_MAGIC && p.HasOwnMount(memory):
		return []string{p.InsidePath(memory), disk}
	}
	return []string{disk} // the sandbox was made without
}

// memoryStage is the staging directory in memory, as the sandbox sees it. It is mounted there only:
// it goes with the sandbox, and with whoever still has it open.
func memoryStage(runDir string) string { return filepath.Join(runDir, "stage") }

const (
	retryFirst = 5 * time.Second  // how soon a checkpoint is tried again that could not be made
	maxRetries = 10               // after which the time until the next one stays as it is
	leastEvery = 10 * time.Second // the shortest interval that Overhead chooses
	jitter     = 0.05             // so that many jobs do not write at the same time
)

// cost is what a checkpoint has taken.
type cost struct{ pause, total time.Duration }

// costs are those of the last checkpoints.
type costs []cost

const keepCosts = 5

func (c costs) add(last cost) costs {
	c = append(c, last)
	return c[max(0, len(c)-keepCosts):]
}

// expected is what the next checkpoint takes, as far as that can be known: the most of the last
// ones.
func (c costs) expected() (_ cost, known bool) {
	var most cost
	for _, one := range c {
		most = cost{max(most.pause, one.pause), max(most.total, one.total)}
	}
	return most, len(c) > 0
}

// interval is how long to wait for the next checkpoint, without jitter.
func (s *checkpointer) interval() time.Duration {
	expected, known := s.costs.expected()
	if s.Overhead > 0 && known {
		return max(time.Duration(float64(expected.pause)/s.Overhead), expected.total, leastEvery)
	}
	return s.Every
}

// untilNext is how long to wait for the next checkpoint, after one that was made or was not. One
// that failed is tried again soon, and then less and less often.
func (s *checkpointer) untilNext(err error) time.Duration {
	interval := s.interval()
	if err == nil {
		s.failures = 0
		return interval + time.Duration((2*rand.Float64()-1)*jitter*float64(interval))
	}
	s.failures++
	return min(interval, retryFirst<<min(s.failures-1, maxRetries))
}

// exceedsMaxPause reports whether the job would be paused for longer than it may.
func (s *checkpointer) exceedsMaxPause() (time.Duration, bool) {
	expected, known := s.costs.expected()
	return expected.pause, known && s.MaxPause > 0 && expected.pause > s.MaxPause
}
