package jobs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs/life"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/first"
	"cucriu/internal/kit/guest"
)

// Movable is a long job as its move to another host sees it: what the directory says, its checkpoints, and what its
// supervisor does for the move. internal/migrate names nothing of this package but what is declared in files whose names
// begin with "mov": see test/layers.
type Movable struct {
	Local // as this host knew it when it was looked for
	hook  *hooks.Hook
	store *store.Store // nil before it is needed
}

// NewMovable returns a job that was found.
func NewMovable(hook *hooks.Hook, of Local) *Movable { return &Movable{Local: of, hook: hook} }

// MovableIn returns the job of a directory, which may be yet to come.
func MovableIn(hook *hooks.Hook, dir string) *Movable { return NewMovable(hook, Local{Dir: dir}) }

// Movables returns the long jobs of this host, by name.
func Movables(hook *hooks.Hook) (all []*Movable, err error) {
	locals, err := Locals(hook.Config.RunDir)
	for _, l := range locals {
		all = append(all, NewMovable(hook, l))
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

// SupervisorPID returns the pid of the supervisor by now; 0 if there is none.
func (j *Movable) SupervisorPID() int {
	local, _ := Find(j.hook.Config.RunDir, j.Dir)
	return local.PID
}

// IsUnattended reports whether the job runs without a supervisor.
func (j *Movable) IsUnattended() bool { return j.State == StateUnattended }

// CheckLeaves says of a job that can leave this host what its directory says, and why another one cannot.
func (j *Movable) CheckLeaves() (of Description, err error) {
	if !j.Runs() || j.lost != nil {
		if j.PID == 0 || j.lost != nil {
			return of, noSupervisor(j.Local)
		}
		return of, fmt.Errorf("%s cannot move now, its state is %q: see cucriu jobs list", j.Name, j.State)
	}
	if of, err = Describe(j.Dir); err == nil && of.Attached {
		err = fmt.Errorf("%s has a terminal or input from an earlier version of cucriu run (--tty, --stdin), "+
			"and cannot be migrated", j.Name)
	}
	if err == nil && of.Image != "" {
		err = fmt.Errorf("%s was started from an image, and cannot be migrated: start another job there from the image, "+
			"or from a checkpoint of this one", j.Name)
	}
	return of, err
}

// IsOf reports whether the record of a job, in the file at path, is that of this job, which began at a time. The path
// is empty for the record in the job's directory.
func (j *Movable) IsOf(path string, begun time.Time) (bool, error) {
	if path == "" {
		path = filepath.Join(j.Dir, recordName)
	}
	of, err := describeAs(path)
	return of.Dir == j.Dir && of.Begun.Equal(begun), err
}

// BeganAt reports whether the directory is that of a job which began at a time.
func (j *Movable) BeganAt(begun time.Time) (bool, error) {
	of, err := Describe(j.Dir)
	return of.Begun.Equal(begun), err
}

// View opens the store to look at it. It fails if the directory is not root's alone.
func (j *Movable) View() (err error) {
	if j.store == nil {
		j.store, err = store.View(j.Dir)
	}
	return err
}

// Owner tells the store from others, wherever it is seen.
func (j *Movable) Owner() (token string, err error) {
	if err := j.View(); err != nil {
		return "", err
	}
	owner, err := j.store.Owner()
	return owner.Token, err
}

// Newest returns the newest checkpoint that can be used.
func (j *Movable) Newest() (newest store.Checkpoint, found bool, err error) {
	if err := j.View(); err != nil {
		return newest, false, err
	}
	all, err := j.store.Checkpoints()
	for _, c := range all {
		if c.Err == nil && c.GivenUp == "" {
			newest, found = c, true
		}
	}
	return newest, found, err
}

// FilesChanged reports whether files that the job needs as they were at a checkpoint, in dir, are others by now.
func (j *Movable) FilesChanged(ctx context.Context, dir string) bool {
	findings, err := checkFiles(ctx, dir)
	return err != nil || findings.Err() != nil
}

// Checkpoint has the supervisor make a checkpoint.
func (j *Movable) Checkpoint(ctx context.Context) error {
	_, err := Ask(ctx, j.hook.Config.RunDir, j.Local, Request{Op: life.AskCheckpoint}, nil)
	return err
}

// End has the job end in a checkpoint, and its supervisor wait for the decision about the move.
func (j *Movable) End(ctx context.Context) (checkpoint string, err error) {
	answer, err := Ask(ctx, j.hook.Config.RunDir, j.Local, Request{Op: life.AskMove}, nil)
	return answer.Checkpoint, err
}

// TravelFiles are the files that a job takes along when it moves to another host, beside its
// checkpoints. The first is its record; the others may be missing.
func TravelFiles() []string {
	return []string{recordName, OutputLog, eventsName, flagsName, first.File, guest.File}
}

// RequireGone fails unless the job is known not to run on this host.
func (j *Movable) RequireGone() error { return RequireGone(j.hook.Config.RunDir, j.Dir) }

// Listed is a checkpoint as it is announced to another host.
type Listed = store.Listed

// List lists those checkpoints that can be sent and are wanted, the oldest first.
func (j *Movable) List(wanted func(name string, crc32c uint32) bool) ([]Listed, error) {
	if err := j.View(); err != nil {
		return nil, err
	}
	return j.store.List(wanted)
}

// Open takes the store of a job that comes. It makes the directory if there is none.
func (j *Movable) Open() error {
	opened, err := store.Open(j.Dir, store.OpenOptions{Log: j.hook.Log})
	if err == nil {
		j.store = opened
	}
	return err
}

// IsOpen reports whether the store is open.
func (j *Movable) IsOpen() bool { return j.store != nil }

// Close gives the store back.
func (j *Movable) Close() (err error) {
	if j.store != nil {
		err, j.store = j.store.Close(), nil
	}
	return err
}

// RemoveLeftovers removes what killed programs have left in the store.
func (j *Movable) RemoveLeftovers() error {
	_, err := j.store.RemoveLeftovers()
	return err
}

// Import makes a checkpoint of files that have come. from says where each is.
func (j *Movable) Import(ctx context.Context, l Listed, from func(number int) string) error {
	return j.store.Import(ctx, l, from)
}

// arrivalVerifiers is how many threads read a checkpoint that has come.
const arrivalVerifiers = 4

// Verify reads the checkpoints that have come and were not verified yet, and finds out what stands in the way of the
// newest here. What is wrong with one that was here before does not matter.
func (j *Movable) Verify(ctx context.Context, hasCome func(name string) bool) (findings preflight.Findings, err error) {
	all, err := j.store.Checkpoints()
	if err != nil || len(all) == 0 {
		return nil, err
	}
	var before []store.Checkpoint
	for _, c := range all {
		if !hasCome(c.Name) {
			before = append(before, c)
			continue
		}
		if c.Verified {
			continue
		}
		if err := j.store.Verify(ctx, c, arrivalVerifiers, nil); err != nil {
			// If it shares a damaged file with one that was here before, both are sent the next time.
			for _, c := range before {
				_ = j.store.Verify(ctx, c, arrivalVerifiers, nil)
			}
			return nil, fmt.Errorf("checkpoint %s does not match what was sent: %w", c.Name, err)
		}
	}
	return CheckRestore(ctx, j.hook, all[len(all)-1].Dir)
}

// RequireComplete fails unless all that the job needs has come. newest is its newest checkpoint.
func (j *Movable) RequireComplete(newest string, begun time.Time) error {
	all, err := j.store.Checkpoints()
	if err != nil {
		return err
	}
	if len(all) == 0 || all[len(all)-1].Name != newest || !all[len(all)-1].Verified {
		return fmt.Errorf("checkpoint %.40q has not arrived", newest)
	}
	is, err := j.IsOf("", begun)
	if err == nil && !is {
		err = errors.New("the job's record has not arrived")
	}
	return err
}

// NoteArriving notes on this host that the job comes.
func (j *Movable) NoteArriving() error {
	return NoteLocal(j.hook.Config.RunDir, j.Dir, StateArriving)
}

// NoteMoved notes on this host that the job is at another one.
func (j *Movable) NoteMoved() error { return NoteLocal(j.hook.Config.RunDir, j.Dir, StateMoved) }

// Remove removes all that has come. The record of the move goes last: as long as it is there, nobody takes the rest for
// a job.
func (j *Movable) Remove() (err error) {
	for _, name := range OwnFiles() {
		err = errors.Join(err, os.RemoveAll(filepath.Join(j.Dir, name)))
	}
	return err
}

// EventsSize is how long the log of the job's events is.
func (j *Movable) EventsSize() (int64, error) {
	info, err := os.Stat(filepath.Join(j.Dir, eventsName))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Resumed reports whether the log of events says, from an offset on, that the job was started, resumed or attached to.
func (j *Movable) Resumed(from int64) (bool, error) {
	data, err := os.ReadFile(filepath.Join(j.Dir, eventsName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	for line := range bytes.Lines(data[min(int(from), len(data)):]) {
		var e Event
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		if e.Event == EventStarted || e.Event == EventResumed || e.Event == EventAttached {
			return true, nil
		}
	}
	return false, nil
}

// UndoFiles undoes what a restore did to the files of the job, which is not resumed here.
func (j *Movable) UndoFiles() error { return UndoFiles(j.hook.Config.RunDir, j.Dir) }
