package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks"
	"cucriu/internal/jobs/inside"
	"cucriu/internal/jobs/job"
	"cucriu/internal/jobs/relay"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/files"
)

// core is what all that takes care of a job shares.
type core struct {
	Options
	*reporter
	*instance
	hook   *hooks.Hook
	record record
	store  *store.Store
	runDir string       // of this job on this host; gone after a reboot
	user   *job.Account // nil if the job is root's
	// fileSize is how large files this command might write, which counts for the job and not for its checkpoints.
	fileSize *unix.Rlimit
	tail     *follower
	relay    *relay.Relay // nil if no port is published
	relays   bool         // it serves
	probes   *probes
	staged   string // where the last image of the job is, if it could not be made a checkpoint
	// pending are staging directories of this supervisor that hold what a checkpoint is to be made of once the job has
	// ended: see [checkpointer.checkpointBy].
	pending []string

	isNew     bool // the record was made by this run
	withdrawn bool // the job was refused before it ever ran
}

// publishPorts relays to the ports of the job from now on, until the supervisor ends.
func (s *core) publishPorts() error {
	if s.relay == nil {
		return nil
	}
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", s.sandbox.Init().PID))
	if err != nil {
		return fmt.Errorf("network of the job: %w", err)
	}
	var ports []string
	for _, p := range s.relay.Published() {
		ports = append(ports, p.String())
	}
	if err := failpoint.Hit(context.Background(), "jobs.publishing", 0); err != nil {
		return errors.Join(err, namespace.Close())
	}
	addresses := slices.Clone(s.record.Image.Addresses) // a later start may add some
	if s.relays {
		return errors.Join(s.relay.Move(namespace, addresses), namespace.Close())
	}
	s.relays = true
	s.inform("published: " + strings.Join(ports, " "))
	go func() {
		defer namespace.Close()
		s.sayError(s.relay.Serve(context.Background(), namespace, addresses))
	}()
	return nil
}

func newCore(hook *hooks.Hook, o Options) *core {
	r := &reporter{dir: o.Dir, messages: o.Messages, quiet: o.Quiet}
	in := &instance{reporter: r, criu: o.Criu, waitAll: o.WaitAll, held: new(held)}
	return &core{Options: o, reporter: r, instance: in, hook: hook, probes: newProbes()}
}

func (s *core) outputPath() string { return filepath.Join(s.Dir, OutputLog) }

// seenOutput is the path by which the job has its output log: that which it had when its image was made.
func (s *core) seenOutput() string {
	if from := s.record.Image; from != nil && from.Dir != "" {
		return filepath.Join(from.Dir, OutputLog)
	}
	return s.outputPath()
}

const shm, tmp = "/dev/shm", "/tmp"

// files says which files of the job belong to a checkpoint. The /dev/shm of a sandbox is its own.
func (s *core) files() files.Options {
	except := append([]string{s.outputPath(), s.seenOutput(), filepath.Join(aboutDir, aboutName)}, s.NotSaved...)
	o := files.Options{Limit: s.FilesLimit, Except: except}
	if s.sandbox != nil && !s.sandbox.IsAdopted() {
		o.Shm = shm
	}
	if s.PrivateTmp {
		o.PrivateTmp = tmp
	}
	return o
}

// undoFile is where a restore notes how to undo what it does to the files of a job. If the disk of
// the job is full, that is in the run directory, by when the job began: whoever undoes it may know
// the job's directory by another path.
func undoFile(runDir, dir string, begun time.Time) files.UndoFile {
	return files.UndoFile{
		Path:  filepath.Join(dir, undoName),
		Spare: filepath.Join(runDir, fmt.Sprintf("undo-%d.json", begun.UnixNano())),
	}
}

// undoFile is none for a job from an image: most of its files only its own sandbox has.
func (s *core) undoFile() files.UndoFile {
	if s.record.Image != nil {
		return files.UndoFile{}
	}
	return undoFile(s.hook.Config.RunDir, s.Dir, s.record.Begun)
}

const undoName = "undo.json"

// undoFiles undoes what a restore did to the job's files that did not come to its end. Nothing of
// the job runs.
func (s *core) undoFiles() error {
	if s.record.Image != nil {
		return nil
	}
	left, err := files.Undo(s.undoFile())
	s.tellChanges(left)
	return err
}

// forgetUndo notes that the job keeps its files as they are.
func (s *core) forgetUndo() {
	if s.record.Image == nil {
		s.sayError(files.Forget(s.undoFile()))
	}
}

// UndoFiles undoes what a restore did to the files of a job that is not resumed here.
func UndoFiles(runDir, dir string) error {
	of, err := Describe(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, err = files.Undo(undoFile(runDir, dir, of.Begun))
	return err
}

// endSandbox ends the sandbox, and what is left of the job in it. How the job has ended is forgotten
// then. A sandbox that could not be ended is kept, and is not taken for gone.
func (s *core) endSandbox() error {
	if s.sandbox == nil {
		return nil
	}
	if err := s.sandbox.Kill(); err != nil {
		return err
	}
	dir := s.sandbox.Dir
	s.close()
	s.status.note(func(l *Local) { l.Init = nil })
	return os.RemoveAll(dir) // others may be a new owner's
}

// leave ends what is left of the job here, if it may be ended.
func (s *core) leave() error {
	if s.sandbox == nil {
		return nil
	}
	if err := s.mayEnd(s.sandbox); err != nil {
		return err
	}
	return s.endSandbox()
}

// mayEnd fails if an adopted job runs of which there is no checkpoint: nobody here could start it
// again.
func (s *core) mayEnd(at *sandbox.Sandbox) error {
	if !at.AdoptedRuns() {
		return nil
	}
	all, err := s.store.Checkpoints()
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("there is no checkpoint of %s: process %d is not ended, and runs unsupervised", s.record.Name, at.Root)
	}
	return err
}

// giveUpPatience is how long a dump or restore may take to give up once its time is over.
const giveUpPatience = 2 * time.Second

// killPatiently ends the sandbox if what is under way in it has not been given up some time after
// ctx ends. The caller calls over when it has.
func (s *core) killPatiently(ctx context.Context) (over func()) {
	done, at := make(chan struct{}), s.sandbox
	go func() {
		select {
		case <-done:
			return
		case <-ctx.Done():
		}
		select {
		case <-done:
		case <-time.After(giveUpPatience): // criu hangs
			if s.mayEnd(at) == nil {
				_ = at.Kill()
			}
		}
	}()
	return func() { close(done) }
}

// sayNext says from where the job resumes.
func (s *core) sayNext() error {
	newest := s.status.newest()
	if isAway := new(fault.Explained); newest != nil && errors.As(s.store.Fenced(), &isAway) { // as the end reports
		s.say(fmt.Sprintf("once its directory is back, the same command resumes from checkpoint %s of %s",
			newest.Name, newest.At.Local().Format(time.DateTime)))
		return nil
	}
	all, err := s.store.Checkpoints()
	if err != nil {
		return err
	}
	if len(all) == 0 && s.staged == "" {
		if err := checkMade(s.Dir); err != nil {
			s.say(err.Error())
			return nil
		}
		s.say(fmt.Sprintf("there is no checkpoint: what the job has done since %s is lost, and the same command starts it from the beginning", s.record.Begun.Local().Format(time.DateTime)))
	} else {
		s.inform(s.resumesFrom(all))
	}
	return nil
}

// resumesFrom says from what the job resumes.
func (s *core) resumesFrom(all []store.Checkpoint) string {
	if s.staged != "" {
		return fmt.Sprintf("the same command makes a checkpoint of the image in %s, and resumes from it", s.staged)
	}
	if c := newestOf(all); c != nil {
		at := c.CreatedAt.Local().Format(time.DateTime)
		return fmt.Sprintf("the same command resumes from checkpoint %s of %s", c.Name, at)
	}
	return "none of its checkpoints is known to be usable: see cucriu jobs list " + s.record.Name
}

// withdraw forgets a job that was refused before it ever ran: its command may be corrected. One that an
// earlier run has begun stays: what refuses it now may pass.
func (s *core) withdraw() error {
	if !s.isNew {
		return removeSandboxes(s.Dir)
	}
	s.withdrawn = true
	err := removeSandboxes(s.Dir)
	if s.record.Image != nil { // the next job's may be others, in another order
		private := filepath.Join(s.Dir, privateDir)
		left := errors.Join(os.RemoveAll(private), os.RemoveAll(private+".partial"), removeCopiedImage(s.Dir))
		if left != nil {
			return errors.Join(err, left) // the record says whose they are
		}
	}
	return errors.Join(err, os.Remove(filepath.Join(s.Dir, recordName)))
}

// finish records that the job has come to its end.
func (s *core) finish(status int, at time.Time) error {
	s.record.Finished = &finished{Status: status, At: at}
	if err := s.record.write(s.Dir); err != nil {
		return fmt.Errorf("%s has finished, but that could not be recorded: %w", s.record.Name, err)
	}
	s.status.is(StateFinished)
	return nil
}

// sayFinished says that the job has finished, and returns its status.
func (s *core) sayFinished() (status int) {
	end := s.record.Finished
	s.inform(fmt.Sprintf("%s has finished on %s, with exit status %d; to run it again, name another --dir, or remove this one", s.record.Name, end.At.Local().Format(time.DateTime), end.Status))
	return end.Status
}

// nameOf names a signal; real-time signals as kill -l does.
func nameOf(sig unix.Signal) string {
	const first = 34 // glibc keeps 32 and 33 for itself
	switch name := unix.SignalName(sig); {
	case name != "":
		return name
	case sig >= first:
		return fmt.Sprintf("signal %d (SIGRTMIN+%d)", sig, sig-first)
	}
	return fmt.Sprintf("signal %d", sig)
}

// tellEnded tells how the job has ended, and more about that.
func (s *core) tellEnded(exit sandbox.Exit, more string) {
	s.tell(Event{Event: EventEnded, Status: exit.Code(), Message: s.howEnded(exit) + more})
}

func (s *core) howEnded(exit sandbox.Exit) string {
	message := fmt.Sprintf("%s has ended with exit status %d", s.name, exit.Code())
	if exit.Unknown {
		message = s.name + " has ended, but on this kernel only its parent learns how: if it has finished, remove this directory"
	}
	if exit.Status.Signaled() {
		message = fmt.Sprintf("%s was killed by %s", s.name, nameOf(exit.Status.Signal()))
	}
	return message
}

// age says when a checkpoint was made.
func age(c store.Checkpoint) string { return c.CreatedAt.Local().Format(time.DateTime) }

// tellFailure tells what is wrong, unless that was the last that was told.
func (s *core) tellFailure(message string) {
	if last := s.status.failure(); last == nil || last.Message != message {
		s.tell(Event{Event: EventFailed, Message: message})
	}
}

// tellRemoved tells that somebody has removed the newest checkpoint of a job that runs.
func (s *core) tellRemoved() {
	newest := s.status.newest()
	if newest == nil {
		return
	}
	if _, err := os.Lstat(filepath.Join(s.Dir, store.CheckpointsDir, newest.Name)); !errors.Is(err, fs.ErrNotExist) {
		return
	}
	all, err := s.store.Checkpoints()
	if err != nil {
		return
	}
	next, since, left := madeOf(all), s.record.Begun, "there is no other"
	if next != nil {
		since, left = next.At, "the newest one is now "+next.Name
	}
	s.status.note(func(l *Local) { l.Checkpoint, l.WorkSince = next, since })
	s.tell(Event{Event: EventFailed, Message: fmt.Sprintf("%s, and %s: to make one, cucriu jobs checkpoint %s", missing(s.Dir, *newest), left, s.name)})
}

// newestOf returns the newest checkpoint that is neither damaged nor given up; nil if there is none.
func newestOf(all []store.Checkpoint) *store.Checkpoint {
	for _, c := range slices.Backward(all) {
		if c.Usable() {
			return &c
		}
	}
	return nil
}

// madeOf is [newestOf] for people.
func madeOf(all []store.Checkpoint) *Made {
	c := newestOf(all)
	if c == nil {
		return nil
	}
	return &Made{Name: c.Name, At: c.CreatedAt}
}

// A paused job is stopped, and its GPU memory is in host memory. That it is paused is written in
// its sandbox, so that the next supervisor knows it as well.

// pause stops the job, and reports whether it is paused.
func (s *core) pause(ctx context.Context) (bool, error) {
	if _, err := s.ask(ctx, inside.Request{Op: inside.Pause, Root: s.sandbox.Root}); err != nil {
		paused, _ := inside.IsPaused(s.sandbox.RunDir) // it was cut off, and cucriu jobs resume resumes the job
		return paused, err
	}
	s.tell(Event{Event: EventPaused, Message: s.record.Name + " is paused: it is stopped, and its GPU memory is in host memory"})
	return true, nil
}

// unpause resumes a paused job.
func (s *core) unpause(ctx context.Context) error {
	if _, err := s.ask(ctx, inside.Request{Op: inside.Unpause, Root: s.sandbox.Root}); err != nil {
		if s.isExiting() {
			return fmt.Errorf("%s has ended in its pause, or as soon as it was resumed: %w", s.record.Name, err)
		}
		return fmt.Errorf("%s could not be resumed, and is still paused: %w", s.record.Name, err)
	}
	s.tell(Event{Event: EventUnpaused, Message: s.record.Name + " was resumed after its pause"})
	return nil
}
