package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/hooks/timeline"
	"cucriu/internal/jobs/inside"
	"cucriu/internal/jobs/job"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/files"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/records"
	"cucriu/internal/kit/units"
)

// resumeNewest resumes the newest checkpoint that can be restored. What this host refuses would
// be lost by taking an older one, and may go through later or elsewhere. So would be the newest of a
// job that has just arrived: its source still has it.
func (s *starter) resumeNewest(ctx context.Context, all []store.Checkpoint) error {
	source, err := s.mayReturnTo()
	if err != nil {
		return err
	}
	if made := lastMade(s.Dir, s.record.Begun); (store.Checkpoint{Name: made.Name}).Number() > all[len(all)-1].Number() {
		s.say(missing(s.Dir, made) + ": " + s.record.Name + " resumes from an older one")
	}
	if err := s.giveUpNewer(all); err != nil {
		return err
	}
	all = inTurn(all)
	failed := make(map[string]error)
	for i, c := range all {
		err := s.resumeTwice(ctx, c)
		if err == nil {
			// The job resumes from an older one, which has put back its files further.
			for name, why := range failed {
				s.sayError(s.store.GiveUp(name, why))
			}
			return nil
		}
		if ctx.Err() != nil || errors.As(err, new(*job.NotStartedError)) {
			return err
		}
		if preflight.Refused(err) {
			return fmt.Errorf("checkpoint %s cannot be restored here: %w", called(c), err)
		}
		failed[c.Name] = err
		if damage := new(store.DamageError); errors.As(err, &damage) {
			s.sayError(s.store.NoteDamage(c, damage))
		}
		if source != "" {
			return fmt.Errorf("checkpoint %s cannot be restored here, and no older one is tried, because %s has it, too (cucriu recover here returns the job): %w", called(c), source, err)
		}
		next := "and there is no other"
		if i+1 < len(all) {
			next = "trying checkpoint " + all[i+1].Name
		}
		s.tell(Event{Event: EventFailed, Checkpoint: c.Name, Message: fmt.Sprintf("checkpoint %s cannot be restored, %s: %v", called(c), next, err)})
	}
	why := slices.Collect(maps.Values(failed))
	err = fmt.Errorf("%s was neither resumed nor started anew: %w", s.record.Name, errors.Join(why...))
	if !slices.ContainsFunc(why, func(err error) bool { return !errors.As(err, new(*store.DamageError)) }) {
		err = fmt.Errorf("%w: %s", err, LostRemedy(s.record.Name, s.Dir))
	}
	return err
}

// mayReturnTo names the host to which a job can still be given back: it has arrived, and has not run here.
func (s *starter) mayReturnTo() (host string, err error) {
	m, err := ReadMove(s.Dir)
	if err != nil || m.State != MoveArrived || m.Taken {
		return "", err
	}
	if ran, err := HasRunSince(s.Dir, m.Events); err != nil || ran {
		return "", err
	}
	return proc.Printable(m.Peer), nil
}

// LostRemedy says what to do about a job all of whose checkpoints are damaged.
func LostRemedy(name, dir string) string {
	if hasStaged(dir) {
		return "cucriu run makes another one if its last supervisor has left an image"
	}
	return "restore one from a copy; or cucriu jobs rm " + name + " --yes removes the job, then cucriu run starts it anew"
}

// hasStaged reports whether there may be an image that is not a checkpoint yet.
func hasStaged(dir string) bool {
	staged, _ := entries(filepath.Join(dir, "staged"), "")
	return len(staged) > 0
}

// resumeTwice tries a checkpoint a second time if it is not known to be damaged: to take the
// one before loses an interval, and somebody may just have killed criu.
func (s *starter) resumeTwice(ctx context.Context, c store.Checkpoint) error {
	err := s.resume(ctx, c)
	switch {
	case err == nil, ctx.Err() != nil, c.Err != nil, errors.As(err, new(*store.DamageError)), errors.As(err, new(*files.OtherNameError)):
		return err
	case preflight.Refused(err), errors.As(err, new(*job.NotStartedError)):
		return err
	}
	s.tell(Event{Event: EventFailed, Checkpoint: c.Name, Message: fmt.Sprintf("checkpoint %s could not be restored, trying again: %v", called(c), err)})
	return s.resume(ctx, c)
}

// replaceOurs puts the files of ours that a checkpoint needs back if somebody has removed them. criu checks that they are
// the same ones.
func (s *starter) replaceOurs(c store.Checkpoint) error {
	for name, of := range ours {
		path := filepath.Join(s.Dir, name)
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		needed, _ := criuimage.Files(c.Dir) // the restore says what is wrong with it
		seen := filepath.Join(filepath.Dir(s.seenOutput()), name)
		if !slices.ContainsFunc(needed, func(f criuimage.File) bool { return f.Path == seen }) {
			continue
		}
		s.say(fmt.Sprintf("%s, which the job has loaded, is missing: it is put back", path))
		if err := of.place(s.Dir); err != nil {
			return err
		}
	}
	return nil
}

// inTurn returns the checkpoints in the order in which they are tried: the newest first, and last
// of all those that were given up.
func inTurn(all []store.Checkpoint) []store.Checkpoint {
	all = slices.Clone(all)
	slices.Reverse(all)
	slices.SortStableFunc(all, func(a, b store.Checkpoint) int {
		return cmp.Compare(min(len(a.GivenUp), 1), min(len(b.GivenUp), 1))
	})
	return all
}

// resume restores a checkpoint in a new sandbox.
func (s *starter) resume(ctx context.Context, c store.Checkpoint) error {
	s.steps.begin()
	turn, err := s.prepareNetwork(ctx, c.Dir, false)
	if err != nil {
		return preflight.AsRefusal(err)
	}
	defer turn.Close()
	if err := s.restore(ctx, c, sandbox.Shown{At: c.Dir}, false); err != nil {
		return err
	}
	message := fmt.Sprintf("%s resumes from checkpoint %s of %s", s.record.Name, c.Name, age(c))
	s.tell(s.steps.event(Event{Event: EventResumed, Checkpoint: c.Name, Message: message}))
	return s.openRoot()
}

// steps are the parts of a start, with how long each took. Those of the session within the restore follow it.
type steps struct {
	begun, last time.Time
	phases      timeline.Phases
}

func (p *steps) begin() { *p = steps{begun: time.Now(), last: time.Now()} }

// over ends a step, which began where the last one ended.
func (p *steps) over(name string) {
	now := time.Now()
	p.phases = append(p.phases, timeline.Phase{
		Name: name, Start: p.last.Sub(p.begun).Seconds(), Seconds: now.Sub(p.last).Seconds(),
	})
	p.last = now
}

func (p *steps) event(e Event) Event {
	e.Duration, e.Phases = time.Since(p.begun), p.phases
	return e
}

// readAhead has the files of a checkpoint read while its restore is prepared, first those that criu needs, if there is
// memory for twice as much: else they may be gone again when they are needed.
func readAhead(ctx context.Context, images string) {
	entries, err := os.ReadDir(images)
	if err != nil {
		return // the restore says so
	}
	var first, then []string
	var sum int64
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil {
			sum += info.Size()
		}
		if path := filepath.Join(images, entry.Name()); strings.HasPrefix(entry.Name(), oursPrefix) {
			then = append(then, path)
		} else {
			first = append(first, path)
		}
	}
	room, err := proc.System{}.AvailableMemory()
	groups, groupsErr := proc.System{}.MemoryGroups(os.Getpid())
	for _, group := range groups {
		room = min(room, group.Room())
	}
	if errors.Join(err, groupsErr) == nil && uint64(sum) < room/2 {
		durable.ReadAhead(ctx, append(first, then...))
	}
}

// restore restores a checkpoint in a new sandbox, which sees it at image.At. copies says that the job's files are fresh
// copies.
func (s *starter) restore(ctx context.Context, c store.Checkpoint, image sandbox.Shown, copies bool) error {
	if errors.Is(c.Err, records.ErrNewer) { // an older one would lose work
		return preflight.AsRefusal(byMaker(c.Dir, c.Err))
	}
	if c.Err != nil {
		return c.Err
	}
	ahead, enough := context.WithCancel(ctx)
	defer enough()
	go readAhead(ahead, c.Dir)
	if err := s.store.Check(ctx, c); errors.As(err, new(*store.DamageError)) {
		return err
	} else if err != nil { // an older one would lose work
		return preflight.AsRefusal(byMaker(c.Dir, err))
	}
	s.steps.over("verify")
	if err := s.checkNames(c.Dir); err != nil {
		return err
	}
	if err := s.refuseFileSize(c.Bytes); err != nil {
		return preflight.AsRefusal(err)
	}
	if image.Dir == "" { // else the job is another one, beside that of the image
		if err := refuseSurvivors(c.Dir); err != nil {
			return preflight.AsRefusal(err)
		}
	}
	as, err := s.programUser(c)
	if err != nil {
		return preflight.AsRefusal(err)
	}
	if err := s.replaceOurs(c); err != nil {
		return preflight.AsRefusal(err)
	}
	if s.user != nil {
		if err := s.user.Check(c.Dir); err != nil {
			return preflight.AsRefusal(err)
		}
	}
	if err := s.endSandbox(); err != nil { // an earlier try's, if that could not do it
		return err
	}
	first, err := criuimage.FreePIDs(c.Dir, firstPID)
	if err != nil {
		return err
	}
	g, err := job.GivenGPUs(s.hook, environment(s.Options), s.record.Adopted)
	if err != nil {
		return err
	}
	if err := g.Require(len(c.GPUs)); err != nil {
		return preflight.AsRefusal(err)
	}
	spec := sandbox.Spec{FirstPID: first, Root: c.RootPID}
	if c.Clocks != (store.Clocks{}) { // an early version has not noted those of a dump
		spec.Clocks = &sandbox.Clocks{
			Monotonic: time.Duration(c.Clocks.Monotonic), Boottime: time.Duration(c.Clocks.Boottime),
		}
	}
	if image.Dir != "" {
		spec.Shown = []sandbox.Shown{image}
	}
	if err := s.newSandbox(ctx, g, spec); err != nil {
		return err
	}
	s.steps.over("sandbox")
	restore := inside.Request{
		Op: inside.Restore, Images: image.At, Undo: s.undoFile(), Output: s.seenOutput(), Copies: copies,
		Dumped:  c.IsDump(),
		Program: s.program("--on-start", s.OnStart, as),
	}
	turn, err := s.awaitNames(ctx, c.Dir)
	if err != nil {
		return err
	}
	over := s.killPatiently(ctx)
	a, err := s.ask(ctx, restore)
	over()
	turn.Close()
	if err != nil {
		// Its files become again what they were before.
		if endErr := s.endSandbox(); endErr != nil {
			return errors.Join(err, endErr)
		}
		return errors.Join(err, s.undoFiles())
	}
	s.steps.over("restore")
	if a.Result.Session != nil {
		s.steps.phases = append(s.steps.phases, a.Result.Session.Phases.Steps()...)
	}
	for _, note := range a.Notes {
		s.say(strings.ReplaceAll(note, s.seenOutput(), s.outputPath()))
	}
	s.tellChanges(a.Changes)
	s.setRunning()
	s.started = s.program("--on-started", s.OnStarted, as)
	return nil
}

// refuseFileSize refuses a checkpoint that is larger than the files that this program may write, if it cannot raise that
// limit: memory that is restored is often a file.
func (s *starter) refuseFileSize(bytes int64) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil || limit.Cur >= uint64(bytes) {
		return err
	}
	return fault.New(fmt.Sprintf("this command may write files of at most %s (ulimit -f), and the checkpoint has %s", units.Size(int64(limit.Cur)), units.Size(bytes)),
		"run it where there is no such limit, or with CAP_SYS_RESOURCE; the job keeps the limit that it had")
}

// refuseSurvivors refuses a checkpoint whose processes still run: those of an adopted job ran in no sandbox, which would
// have ended them with the root process.
func refuseSurvivors(images string) error {
	of, err := inside.ReadStaged(images)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	pids, err := of.Survivors()
	if err != nil || len(pids) == 0 {
		return err
	}
	left := make([]string, len(pids))
	for i, pid := range pids {
		left[i] = strconv.Itoa(pid)
	}
	return fault.New(fmt.Sprintf("the job has ended, but its processes %s have not, and would run twice", strings.Join(left, ", ")),
		"end them first: kill "+strings.Join(left, " "))
}

// called names a checkpoint, with its age if that is known.
func called(c store.Checkpoint) string {
	if c.Err != nil {
		return c.Name
	}
	return c.Name + " of " + age(c)
}

// A supervisor that is killed may leave a complete image in a staging directory, which may be all
// that there is of the job's last interval. The next one makes a checkpoint of it.

// imageName is the image directory in a staging directory.
const imageName = "image"

// saveStaged makes a checkpoint of the newest complete image that earlier supervisors have left, and
// returns its staging directory and those of the older ones, which are not needed then. It fails if that
// may go better another time: what the system could not do, but not what is wrong with an image.
func (s *starter) saveStaged(ctx context.Context) (saved []string, err error) {
	dirs, err := s.store.LeftStages()
	if err != nil {
		return nil, fmt.Errorf("leftovers of an earlier supervisor could not be examined: %w", err)
	}
	found := make(map[string]inside.Staged)
	for _, dir := range dirs {
		images := filepath.Join(dir, imageName)
		of, err := inside.ReadStaged(images)
		switch {
		case err == nil:
			found[images] = of
		case errors.Is(err, fs.ErrNotExist): // the dump was cut off
		case mayPass(err):
			return nil, sayMayPass(images, err)
		default:
			s.say(fmt.Sprintf("%s is not an image: %v", images, err))
		}
	}
	// By the job's own clock: the host's may be set back.
	newestFirst := slices.SortedFunc(maps.Keys(found), func(a, b string) int {
		return cmp.Compare(found[b].Clocks.Monotonic, found[a].Clocks.Monotonic)
	})
	for i, images := range newestFirst {
		err := s.save(ctx, images, found[images])
		switch {
		case err == nil:
			for _, images := range newestFirst[i:] {
				saved = append(saved, filepath.Dir(images))
			}
			return saved, nil
		case mayPass(err) || ctx.Err() != nil:
			return nil, sayMayPass(images, err)
		}
		s.tell(Event{Event: EventFailed, Message: notSaved(images, err).Error()})
	}
	return nil, nil
}

// mayPass reports whether something may go better another time.
func mayPass(err error) bool {
	var errno unix.Errno
	return errors.As(err, &errno) && errno != unix.ENOENT
}

func notSaved(images string, err error) error {
	return fmt.Errorf("the image that an earlier supervisor left in %s could not be made a checkpoint: %w", images, err)
}

func sayMayPass(images string, err error) error {
	remedy := "run this command again, or remove that directory to do without what the job has done since its last checkpoint"
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		remedy = "free some space, and run this command again"
	}
	return fmt.Errorf("%w: %s", notSaved(images, err), remedy)
}

// save makes a checkpoint of an image, unless it is one already, or there is a newer one.
func (s *starter) save(ctx context.Context, images string, of inside.Staged) error {
	boot, err := proc.BootID()
	if err != nil {
		return err
	}
	// One in the job's directory is on the disk, complete: it had got its name.
	if of.BootID != boot && !strings.HasPrefix(images, s.Dir+"/") {
		return errors.New("the host was rebooted since, and it may be incomplete")
	}
	all, err := s.store.Checkpoints()
	if err != nil {
		return err
	}
	for _, c := range all {
		isLater := c.Err == nil && c.Number() >= of.Number
		if of.Number == 0 { // of an earlier version of cucriu
			isLater = !of.Begun.After(c.CreatedAt)
		}
		if isLater {
			return nil
		}
	}
	info, err := describe(images, filepath.Base(s.record.Command[0]), of)
	if err == nil {
		err = files.Sync(ctx, images)
	}
	if err != nil {
		return err
	}
	c, err := s.publish(ctx, images, info, true)
	if err == nil {
		s.tell(Event{Event: EventCheckpoint, Checkpoint: c.Name, Bytes: c.Bytes, NewBytes: c.New, Message: fmt.Sprintf("checkpoint %s was made from the image that an earlier supervisor had staged", c.Name)})
	}
	return err
}
