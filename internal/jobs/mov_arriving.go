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
	"slices"
	"strings"
	"time"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/first"
	"cucriu/internal/kit/guest"
	"cucriu/internal/kit/quote"
)

// Arriving is a long job as its move from another host sees it on this one: what has come of it, and the record of the
// move. Whoever decides has the lock of the record.
type Arriving struct {
	hook  *hooks.Hook
	dir   string
	id    string
	store *store.Store // from the first change in the directory on, until the supervisor opens it
	lock  *MoveLock    // as long as the source is connected
	net   string       // see [FromImage], of a job that is announced
}

// NewArriving returns the job of a directory, which may be yet to come.
func NewArriving(hook *hooks.Hook, dir, id string) *Arriving {
	return &Arriving{hook: hook, dir: dir, id: id}
}

// CheckJobDir refuses an invalid directory of a long job.
func CheckJobDir(dir string) error {
	isPath := filepath.IsAbs(dir) && filepath.Clean(dir) == dir && !strings.ContainsRune(dir, 0)
	if !isPath || len(dir) > 4000 || dir == "/" {
		return fmt.Errorf("%.80q is not the directory of a job", dir)
	}
	return nil
}

// Claim takes the lock of a job whose source tells its decision over a new connection. It does nothing if the move is
// not known here.
func (j *Arriving) Claim(ctx context.Context) error {
	m, err := ReadMove(j.dir)
	if err != nil {
		return err
	}
	if m.State == MoveNone {
		if came, err := hasArrived(j.dir, j.id); err != nil || !came {
			return err
		}
	}
	j.lock, err = LockMove(ctx, j.dir)
	return err
}

// IsClaimed reports whether something was changed here for the move, or its lock taken.
func (j *Arriving) IsClaimed() bool { return j.lock != nil }

// have returns the checkpoints that are here, without their files. A checkpoint that lacks a file is not here.
func (j *Arriving) have() ([]Listed, error) {
	s, err := store.View(j.dir)
	if err != nil {
		return nil, err
	}
	all, err := s.List(func(string, uint32) bool { return true })
	for i := range all {
		all[i].Files = nil
	}
	return all, err
}

// MayArrive fails unless the directory of a job is missing or empty, or the job has left it for another host. It
// returns which of the job's checkpoints are here. Nothing is touched.
func (j *Arriving) MayArrive(of Announced, from string) (have []Listed, err error) {
	if err := errors.Join(CheckJobDir(j.dir), durable.CheckPath("job directory", j.dir, 1)); err != nil {
		return nil, err
	}
	if of.Image != nil {
		if err := of.Image.check(j.hook.Config.RunDir); err != nil {
			return nil, err
		}
		j.net = of.Image.Net
	}
	entries, err := os.ReadDir(j.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("job directory: %w", err)
	}
	view, err := store.View(j.dir)
	if err != nil || len(entries) == 0 { // is it root's alone?
		return nil, err
	}
	host, _ := os.Hostname()
	if owner, err := view.Owner(); err == nil && owner.Token != "" && owner.Token == of.Owner {
		return nil, fmt.Errorf("%[1]s is shared by both hosts, so nothing has to be sent: "+
			"run cucriu jobs stop %[1]s on %[2]s, then cucriu run --dir %[1]s on %[3]s", j.dir, from, host)
	}
	before, err := ReadMove(j.dir)
	switch {
	case err != nil:
		return nil, err
	case before.State == MovePromised:
		return nil, &ElsewhereError{Dir: j.dir, Move: before}
	case before.State == MoveArriving || before.State == MoveNone && j.isEmptyStore() == nil:
		return nil, nil
	}
	if here, err := Describe(j.dir); err != nil || !here.Begun.Equal(of.Begun) {
		return nil, fmt.Errorf("%s is not empty, and not the directory of this job: remove it if it is not needed", j.dir)
	}
	if before.State != MoveLeft {
		return nil, fmt.Errorf("%s has the same job, which has not left this host (see cucriu jobs show %[1]s): "+
			"end it and remove the directory, if it is not needed", j.dir)
	}
	return j.have()
}

// isEmptyStore returns an error if a directory has anything but what a destination makes there before
// it records the move: it may have been killed in between.
func (j *Arriving) isEmptyStore() error {
	entries, err := os.ReadDir(j.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !slices.Contains([]string{"lock", "owner.json", "checkpoints", "staged", moveLockName}, entry.Name()) {
			return fmt.Errorf("%s is no longer empty: it has %s", j.dir, entry.Name())
		}
	}
	all, err := j.have()
	if err == nil && len(all) > 0 {
		err = fmt.Errorf("%s is no longer empty: it has checkpoints", j.dir)
	}
	return err
}

// arrivingName is the folder in the job's directory for what comes.
const arrivingName = ".arriving"

// Folder is where to put what comes.
func (j *Arriving) Folder() string { return filepath.Join(j.dir, arrivingName) }

// Begin makes the job's directory that of a move from another host, which starts the job here by a command, if any.
func (j *Arriving) Begin(ctx context.Context, from, start string) (err error) {
	_, missing := os.Lstat(j.dir)
	if j.store, err = store.Open(j.dir, store.OpenOptions{Log: j.hook.Log}); err != nil {
		return preflight.AsRefusal(err)
	}
	lock, err := TryLockMove(j.dir)
	if err == nil {
		m := Move{ID: j.id, State: MoveArriving, Peer: from, Start: start, Made: errors.Is(missing, os.ErrNotExist)}
		if err = j.noteArriving(ctx, m); err != nil {
			err = errors.Join(err, lock.Free())
		}
	}
	if err != nil {
		return errors.Join(preflight.AsRefusal(err), j.closeStore())
	}
	j.lock = lock
	_ = NoteLocal(j.hook.Config.RunDir, j.dir, StateArriving)
	if err := os.RemoveAll(j.Folder()); err != nil {
		return err
	}
	if _, err := j.store.RemoveLeftovers(); err != nil {
		return err
	}
	return os.Mkdir(j.Folder(), 0o700)
}

// noteArriving writes the record of the move, now that nobody else can open the store.
func (j *Arriving) noteArriving(ctx context.Context, m Move) error {
	before, err := ReadMove(j.dir)
	if err == nil && before.State != MoveLeft && before.State != MoveArriving {
		err = j.isEmptyStore()
	}
	if err == nil {
		err = failpoint.Hit(ctx, "job.arriving", 0)
	}
	if err != nil {
		return err
	}
	switch before.State {
	case MoveLeft:
		m.Before = &before
	case MoveArriving: // of a program that was killed
		m.Before, m.Made = before.Before, before.Made
	}
	return m.Write(j.dir)
}

// IsOpen reports whether checkpoints can come.
func (j *Arriving) IsOpen() bool { return j.store != nil }

// Import makes a checkpoint of files that have come. from says where each is.
func (j *Arriving) Import(ctx context.Context, l Listed, from func(number int) string) error {
	return j.store.Import(ctx, l, from)
}

// Take moves a file of the job, which began at a time and whose name is one of [Luggage].Files, to its place.
func (j *Arriving) Take(name, from string, begun time.Time) error {
	if isPacked(name) {
		return j.takePacked(name, from)
	}
	if !slices.Contains(travelFiles(), name) {
		return fmt.Errorf("%.80q is not a file of a job", name)
	}
	if name == recordName {
		if err := j.requireOf(from, begun); err != nil {
			return err
		}
	}
	if mode, is := map[string]os.FileMode{first.File: first.Mode, guest.File: guest.Mode}[name]; is {
		if err := os.Chmod(from, mode); err != nil { // criu compares it
			return err
		}
	}
	if err := durable.Sync(from); err != nil {
		return err
	}
	return os.Rename(from, filepath.Join(j.dir, name))
}

// requireOf fails unless the record at path is that of the job of this directory which began at a time.
func (j *Arriving) requireOf(path string, begun time.Time) error {
	of, err := describeAs(path)
	if err == nil && (of.Dir != j.dir || !of.Begun.Equal(begun)) {
		err = errors.New("the record that was sent belongs to another job")
	}
	return err
}

// arrivalVerifiers is how many threads read a checkpoint that has come.
const arrivalVerifiers = 4

// Verify reads the checkpoints that have come and were not verified yet, and finds out what stands in the way of the
// newest here. What is wrong with one that was here before does not matter.
func (j *Arriving) Verify(
	ctx context.Context, hasCome func(name string) bool,
) (findings preflight.Findings, err error) {
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
	newest := all[len(all)-1].Dir
	if findings, err = CheckRestore(ctx, j.hook, newest); err == nil && isPrepared(j.net) {
		var there preflight.Findings
		there, err = preparedFindings(j.net, newest)
		findings = append(findings, there...)
	}
	return findings, err
}

// Complete fails unless all has come that the job needs, which began at a time and whose newest checkpoint has this
// name.
func (j *Arriving) Complete(ctx context.Context, newest string, begun time.Time) error {
	all, err := j.store.Checkpoints()
	if err != nil {
		return err
	}
	if len(all) == 0 || all[len(all)-1].Name != newest || !all[len(all)-1].Verified {
		return fmt.Errorf("checkpoint %.40q has not arrived", newest)
	}
	if err := j.requireOf(filepath.Join(j.dir, recordName), begun); err != nil {
		return fmt.Errorf("the job's record has not arrived: %w", err)
	}
	if err := j.unpack(ctx, newest); err != nil {
		return err
	}
	return os.RemoveAll(j.Folder())
}

// Record is what is written down of the move; known is false if there is nothing, or no longer. A job that has come
// here by this move and has moved on since, is [MoveArrived].
func (j *Arriving) Record() (m Move, known bool, err error) {
	if m, err = ReadMove(j.dir); err != nil || m.ID == j.id {
		return m, err == nil && (m.State != MoveLeft || m.Returned != ""), err
	}
	came, err := hasArrived(j.dir, j.id)
	return Move{ID: j.id, State: MoveArrived}, came, err
}

// InDoubt is the error about a job whose source decides, and is lost.
func (j *Arriving) InDoubt() error {
	m, err := ReadMove(j.dir)
	return errors.Join(err, &ElsewhereError{Dir: j.dir, Move: m})
}

// Promise writes down that the job is complete here, and lets a supervisor open its store.
func (j *Arriving) Promise(ctx context.Context) error {
	m, err := ReadMove(j.dir)
	if err != nil || m.ID != j.id {
		return err
	}
	info, err := os.Stat(filepath.Join(j.dir, eventsName))
	switch {
	case err == nil:
		m.Events = info.Size()
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	m.State = MovePromised
	if err := errors.Join(m.Write(j.dir), j.closeStore()); err != nil {
		return err
	}
	return failpoint.Hit(ctx, "job.promised", 0)
}

// ReturnedError says that a job cannot be resumed here, and belongs to its source again.
type ReturnedError struct{ Why string }

func (e *ReturnedError) Error() string { return "it is returned to the source: " + e.Why }

// Run writes down that the job belongs here, and has it run, unless it runs or has run here. If it cannot be resumed,
// it is given back: its error is a [*ReturnedError], and it never runs here from then on, so the source may let it
// run. A job that a person has taken is not given back.
func (j *Arriving) Run(ctx context.Context, taken bool) error {
	m, err := ReadMove(j.dir)
	switch {
	case err != nil || m.ID != j.id:
		return err // nothing of it is here, or no longer
	case m.Returned != "":
		return &ReturnedError{m.Returned}
	case m.State != MoveArrived:
		m.State, m.Before, m.Taken = MoveArrived, nil, taken
		if err := m.Write(j.dir); err != nil {
			return err
		}
	}
	if err := failpoint.Hit(ctx, "job.arrived", 0); err != nil {
		return err
	}
	switch why := j.start(ctx, m); {
	case why == nil || taken:
		return why
	case errors.Is(why, errUnclear):
		return fmt.Errorf("%w: %w", hooks.ErrNotBack, why)
	default:
		return j.giveBack(ctx, m, why)
	}
}

// giveBack gives the job back.
func (j *Arriving) giveBack(ctx context.Context, m Move, why error) (err error) {
	stuck := func(err error) error { return fmt.Errorf("%w: %w: %w", hooks.ErrNotBack, err, why) }
	if j.store, err = store.Open(j.dir, store.OpenOptions{Log: j.hook.Log}); err != nil { // no supervisor is at work
		return stuck(err)
	}
	defer j.closeStore()
	if err := RequireGone(j.hook.Config.RunDir, j.dir); err != nil {
		return stuck(err)
	}
	if ran, err := HasRunSince(j.dir, m.Events); err != nil || ran {
		return err
	}
	if err := UndoFiles(j.hook.Config.RunDir, j.dir); err != nil {
		return stuck(err)
	}
	if err := failpoint.Hit(ctx, "job.returning", 0); err != nil {
		return err
	}
	m.State, m.Returned, m.PeerKnows = MoveLeft, quote.Foreign(why.Error()), true
	if err := m.Write(j.dir); err != nil {
		return err
	}
	if err := failpoint.Hit(ctx, "job.returned", 0); err != nil {
		return err
	}
	return &ReturnedError{m.Returned}
}

// Drop removes what has arrived. A job that had left this host before has left it still. The record of the move goes
// last: as long as it is there, nobody takes the rest for a job.
func (j *Arriving) Drop() error {
	m, err := ReadMove(j.dir)
	if err != nil || m.ID != j.id {
		return err
	}
	err = os.RemoveAll(j.Folder())
	if m.Before != nil {
		return errors.Join(err, m.Before.Write(j.dir), NoteLocal(j.hook.Config.RunDir, j.dir, StateMoved))
	}
	for _, name := range OwnFiles() {
		err = errors.Join(err, os.RemoveAll(filepath.Join(j.dir, name)))
	}
	if err == nil && m.Made {
		err = os.Remove(j.dir)
	}
	return err
}

// SupervisorPID returns the pid of the supervisor by now; 0 if there is none.
func (j *Arriving) SupervisorPID() int {
	local, _ := Find(j.hook.Config.RunDir, j.dir)
	return local.PID
}

func (j *Arriving) closeStore() (err error) {
	if j.store != nil {
		err, j.store = j.store.Close(), nil
	}
	return err
}

// Close gives back what only a program has that is at work.
func (j *Arriving) Close() {
	_ = j.closeStore()
	if j.lock != nil {
		_ = j.lock.Free()
	}
}

// HasRunSince reports whether the log of events of a job says, from an offset on, that it was started, resumed or
// attached to.
func HasRunSince(dir string, from int64) (bool, error) {
	data, err := os.ReadFile(filepath.Join(dir, eventsName))
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
