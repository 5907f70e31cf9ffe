package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"cucriu/hooks"
	"cucriu/internal/jobs/life"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/first"
	"cucriu/internal/kit/guest"
)

// Leaving is a long job as its move to another host sees it on this one. internal/migrate names nothing of this
// package but what is declared in files whose names begin with "mov": see test/layers.
type Leaving struct {
	Local // as this host knew it when it was looked for
	hook  *hooks.Hook
}

// NewLeaving returns a job that was found.
func NewLeaving(hook *hooks.Hook, of Local) *Leaving { return &Leaving{of, hook} }

// AllLeaving returns the long jobs of this host, by name.
func AllLeaving(hook *hooks.Hook) (all []*Leaving, err error) {
	locals, err := Locals(hook.Config.RunDir)
	for _, l := range locals {
		all = append(all, NewLeaving(hook, l))
	}
	return all, err
}

// CheckMovesAlone fails if a process belongs to a long job, or has one below it, which moves as a whole to a host.
func CheckMovesAlone(hook *hooks.Hook, pid int, to string) error {
	job, meaning, err := Involving(hook.Config.RunDir, pid, true)
	if err == nil && job != nil {
		err = fmt.Errorf("process %d %s, which moves as a whole: cucriu migrate --job %s --to %s", pid, meaning, job.Name, to)
	}
	return err
}

// Announced is what the destination of a move is told of a job.
type Announced struct {
	Dir   string    `json:"dir"`
	Name  string    `json:"name"`
	Begun time.Time `json:"begun"`
	Owner string    `json:"owner"` // tells whether both hosts see one directory
	// Bytes is how much the newest checkpoint has.
	Bytes int64 `json:"bytes"`
	// Image is set for a job that was started from an image.
	Image *FromImage `json:"image,omitempty"`
}

// Announce says of a job that can leave this host what its directory says, and why another one cannot. start is the
// command by which the destination starts it; "" for that of this host.
func (j *Leaving) Announce(ctx context.Context, start string) (a Announced, err error) {
	if !j.Runs() || j.lost != nil {
		if j.PID == 0 || j.lost != nil {
			return a, noSupervisor(j.Local)
		}
		return a, fmt.Errorf("%s cannot move now, its state is %q: see cucriu jobs list", j.Name, j.State)
	}
	of, err := Describe(j.Dir)
	switch {
	case err != nil:
		return a, err
	case of.Attached:
		return a, fmt.Errorf("%s has a terminal or input from an earlier version of cucriu run (--tty, --stdin), "+
			"and cannot be migrated", j.Name)
	}
	s, err := store.View(j.Dir)
	if err != nil {
		return a, err
	}
	owner, err := s.Owner()
	if err != nil {
		return a, err
	}
	a = Announced{Dir: of.Dir, Name: of.Name, Begun: of.Begun, Owner: owner.Token}
	newest, err := j.newest()
	if err != nil {
		return a, err
	}
	if newest != nil {
		a.Bytes = newest.Bytes
	}
	a.Image, err = announceImage(ctx, j.Dir, start)
	return a, err
}

// newest returns the job's newest checkpoint that can be used; nil if there is none.
func (j *Leaving) newest() (*store.Checkpoint, error) {
	s, err := store.View(j.Dir)
	if err != nil {
		return nil, err
	}
	all, err := s.Checkpoints()
	return newestOf(all), err
}

// NeedsCheckpoint reports whether the newest checkpoint says nothing about the job as it is now: there is none, or
// files that the job needs are others by now. The destination judges by it.
func (j *Leaving) NeedsCheckpoint(ctx context.Context) (bool, error) {
	newest, err := j.newest()
	if err != nil || newest == nil {
		return true, err
	}
	findings, err := checkFiles(ctx, newest.Dir)
	return err != nil || findings.Err() != nil, nil
}

// Checkpoint has the supervisor make a checkpoint.
func (j *Leaving) Checkpoint(ctx context.Context) error {
	_, err := Ask(ctx, j.hook.Config.RunDir, j.Local, Request{Op: life.AskCheckpoint}, nil)
	return err
}

// End has the job end in a checkpoint, and its supervisor wait for the decision about the move. It fails if the job
// could not be resumed from that one: an older one has less of the job's work.
func (j *Leaving) End(ctx context.Context) error {
	answer, err := Ask(ctx, j.hook.Config.RunDir, j.Local, Request{Op: life.AskMove}, nil)
	if err != nil {
		return err
	}
	if err := j.requireNewest(answer.Checkpoint); err != nil {
		return err
	}
	return pack(ctx, j.Dir)
}

func (j *Leaving) requireNewest(name string) error {
	newest, err := j.newest()
	if err == nil && (newest == nil || newest.Name != name) {
		err = fmt.Errorf("checkpoint %s, in which the job ended, cannot be used (cucriu jobs verify says why), "+
			"so the job is not moved", name)
	}
	return err
}

// Listed is a checkpoint as it is announced to another host.
type Listed = store.Listed

// Luggage is what a round of a move carries.
type Luggage struct {
	Checkpoints []Listed
	Files       []string // of the job's directory, beside the checkpoints
	Newest      string   // in the last round: the checkpoint from which the job is to resume
}

// Luggage returns what the destination lacks, which has checkpoints with these names and checksums: all of them while
// the job runs, and once it has ended the newest one and what else belongs to the job.
func (j *Leaving) Luggage(there map[string]uint32, last bool) (l Luggage, err error) {
	s, err := store.View(j.Dir)
	if err != nil {
		return l, err
	}
	newest, err := j.newest()
	if err == nil && newest == nil {
		err = errors.New("there is no checkpoint to move")
	}
	if err != nil {
		return l, err
	}
	isThere := func(name string, crc32c uint32) bool { sum, is := there[name]; return is && sum == crc32c }
	listed, err := s.List(func(name string, crc32c uint32) bool {
		return isThere(name, crc32c) || !last || name == newest.Name
	})
	if err != nil {
		return l, err
	}
	for _, c := range listed { // what is there was listed, too: others share files with it
		if !isThere(c.Name, c.CRC32C) {
			l.Checkpoints = append(l.Checkpoints, c)
		}
	}
	names := []string{first.File, guest.File} // the checkpoints need them
	if last {
		l.Newest, names = newest.Name, travelFiles()
	}
	if last {
		own, err := packed(j.Dir)
		if err != nil {
			return l, err
		}
		names = append(names, own...)
	}
	for _, name := range names {
		switch _, err := os.Lstat(filepath.Join(j.Dir, name)); {
		case err == nil:
			l.Files = append(l.Files, name)
		case !errors.Is(err, os.ErrNotExist):
			return l, err
		}
	}
	return l, nil
}

// travelFiles are the files that a job takes along when it moves to another host, beside its
// checkpoints. The first is its record; the others may be missing.
func travelFiles() []string {
	return []string{recordName, OutputLog, eventsName, flagsName, first.File, guest.File}
}

// RequireGone fails unless the job is known not to run on this host.
func (j *Leaving) RequireGone() error { return RequireGone(j.hook.Config.RunDir, j.Dir) }

const (
	// backPatience is how long a job may take to be resumed here.
	backPatience = 30 * time.Minute
	// missingPatience is how long its supervisor may not be seen.
	missingPatience = 5 * time.Second
)

// AwaitBack waits until the job runs here: its supervisor resumes it once it is decided that the job stays.
func (j *Leaving) AwaitBack() error {
	missing := time.Now()
	for deadline := time.Now().Add(backPatience); time.Now().Before(deadline); time.Sleep(startLook) {
		local, err := Find(j.hook.Config.RunDir, j.Dir)
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", hooks.ErrNotBack, err)
		case local.Runs(), local.State == StateFinished, local.State == StateEnded, local.State == StateUnattended:
			return nil
		case local.PID != 0:
			missing = time.Now()
		case time.Since(missing) > missingPatience:
			text := "its cucriu run has ended meanwhile: the same command resumes from its newest checkpoint"
			if local.Failure != nil {
				text += "; it said: " + local.Failure.Message
			}
			return fmt.Errorf("%w: %s does not run here: %s", hooks.ErrNotBack, j.Name, text)
		}
	}
	return fmt.Errorf("%w: %s was not resumed within %v: see cucriu jobs list", hooks.ErrNotBack, j.Name, backPatience)
}

// IsUp reports whether the job runs, or a supervisor is at work.
func (l Local) IsUp() bool { return l.PID != 0 || l.State == StateUnattended }
