package jobs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"cucriu/hooks/checkpoint"
	"cucriu/hooks/image"
	"cucriu/internal/jobs/inside"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/records"
	"cucriu/internal/kit/rundir"
	"cucriu/internal/kit/units"
)

// State says what a long job does on this host.
type State string

// The states of long jobs.
const (
	StateBegins     State = "begins" // it is being started or resumed
	StateRunning    State = "running"
	StateCheckpoint State = "checkpoint" // one is being made
	StatePaused     State = "paused"
	StateSuspended  State = "suspended" // by another program: see [suspendedIn]
	StatePreempted  State = "preempted" // it leaves this host, or has left it
	StateStopped    State = "stopped by user"
	StateFinished   State = "finished" // with exit status 0
	StateEnded      State = "ended"    // with another one
	StateDamaged    State = "damaged"  // none of its checkpoints can be used or is there, or its record cannot be read
	StateFailed     State = "failed"   // it could not be started or resumed
	StateMoving     State = "moving"   // it was ended here while it moves to another host
	StateMoved      State = "moved"    // to another host
	StateArriving   State = "arriving" // it is on its way to this host
	// StateUnattended is a job that runs although its supervisor has gone.
	StateUnattended State = "no supervisor"
	// StateUntold is a job that has ended since its supervisor had gone: the next one learns how.
	StateUntold State = "ended, no supervisor"
	// StateHalted is a job whose supervisor is stopped, as by Ctrl-Z: it makes no checkpoints and answers nobody.
	StateHalted State = "supervisor stopped"
	// StateGone is a job that was killed together with its supervisor.
	StateGone State = "killed"
	// StateIdle is a job that does not run here, and this host does not know why.
	StateIdle State = "not running"
)

// Local is what a host knows of a long job that it runs, or ran last. It is in the run directory,
// so that to read it needs no disk that may hang.
type Local struct {
	Name  string `json:"name"`
	Dir   string `json:"dir"`
	PID   int    `json:"pid,omitempty"` // of the supervisor; 0 if there is none
	State State  `json:"state"`
	// ExitStatus is that of a job that has ended by itself.
	ExitStatus *int `json:"exit_status,omitempty"`
	// Image is that from which it was started; "" if it was started by its command.
	Image string `json:"image,omitempty"`
	// MovedTo is the host to which it has moved.
	MovedTo string `json:"moved_to,omitempty"`
	// Metrics is the file for Prometheus.
	Metrics string `json:"metrics,omitempty"`
	// Init is the first process of the job's sandbox.
	Init *proc.Ident `json:"init,omitempty"`
	// Command is the process of the job's command.
	Command *proc.Ident `json:"command,omitempty"`
	// OutputFrom is how large the file with the job's output was when that was started or resumed here.
	OutputFrom int64 `json:"output_from,omitempty"`
	// Restarts is how often the supervisor, or one before it that was killed, has started it again: see [Restart].
	Restarts int `json:"restarts,omitempty"`
	// Checkpoint is the newest one.
	Checkpoint *Made `json:"checkpoint,omitempty"`
	// Trial is the last trial restore of one.
	Trial *image.Trial `json:"trial,omitempty"`
	Next  time.Time    `json:"next_checkpoint,omitzero"`
	// WorkSince is since when the job has done work that is in no checkpoint, and Missed how often one could not be made
	// since then.
	WorkSince time.Time `json:"work_since,omitzero"`
	Missed    int       `json:"missed_checkpoints,omitempty"`
	Failure   *Failure  `json:"last_failure,omitempty"`
	// Where is what the directory is recognized by: see [whereIs].
	Where []string `json:"where,omitempty"`

	alive  bool  // something of the job runs, with or without a supervisor
	paused bool  // all of that stands still, as cucriu jobs pause has left it
	lost   error // why nobody can reach its supervisor, which runs; or nil
}

// Made says which checkpoint was made, and when.
type Made struct {
	Name string    `json:"name"`
	At   time.Time `json:"at"`
}

// Failure is something that went wrong.
type Failure struct {
	At      time.Time `json:"at"`
	Message string    `json:"message"`
}

const localName = "job.json"

// Describe says what the job does, with its exit status or the host to which it has moved.
func (l Local) Describe() string {
	switch {
	case l.State == StateMoved && l.MovedTo != "":
		return "moved to " + proc.Printable(l.MovedTo)
	case (l.State == StateFinished || l.State == StateEnded) && l.ExitStatus != nil:
		return fmt.Sprintf("%s with status %d", l.State, *l.ExitStatus)
	}
	return string(l.State)
}

// NotProtected says why and since when the work of a job that runs is in no checkpoint, although one was due or there
// is none; "" if it is protected.
func (l Local) NotProtected() string {
	if l.PID == 0 || l.WorkSince.IsZero() || l.Checkpoint != nil && l.Missed == 0 {
		return ""
	}
	why := "there is no checkpoint yet"
	if l.Missed > 0 {
		why = units.Count(l.Missed, "checkpoint") + " could not be made since"
	}
	return fmt.Sprintf("not protected since %s: %s", l.WorkSince.Local().Format(time.DateTime), why)
}

// settle finds what has become of a job that does not run here: its directory knows that better than a
// supervisor that has gone.
func (l *Local) settle() {
	if l.PID != 0 || l.alive {
		return
	}
	r, err := loadRecord(filepath.Join(l.Dir, recordName))
	if errors.As(err, new(*json.SyntaxError)) {
		l.State, l.Failure = StateDamaged, &Failure{At: time.Now(), Message: err.Error()}
	}
	if err != nil {
		return
	}
	m, _ := ReadMove(l.Dir)
	switch {
	case r.Finished != nil:
		l.State, l.ExitStatus = StateFinished, &r.Finished.Status
		return
	case m.State == MoveLeft:
		l.State, l.MovedTo = StateMoved, m.Peer
		return
	case m.State == MoveArriving, m.State == MovePromised:
		l.State = StateArriving
		return
	case l.State == "", l.State == StateMoved, l.State == StateArriving:
		l.State, l.MovedTo = StateIdle, ""
	}
	view, err := store.View(l.Dir)
	if err != nil {
		return
	}
	all, err := view.Checkpoints()
	if err != nil {
		return
	}
	l.Checkpoint = madeOf(all)
	if err := checkMade(l.Dir); err != nil {
		l.State, l.Failure = StateDamaged, &Failure{At: time.Now(), Message: err.Error()}
	} else if len(all) > 0 && !slices.ContainsFunc(all, func(c store.Checkpoint) bool { return !c.Damaged() }) {
		l.State = StateDamaged
	}
}

// noteSuspended finds the jobs of which somebody has suspended a process.
func noteSuspended(runDir string, all []Local) {
	for i := range all {
		l := &all[i]
		if l.Init == nil || l.State != StateRunning && l.State != StateUnattended {
			continue
		}
		if found, _ := checkpoint.SuspendedBelow(runDir, l.Init.PID); len(found) > 0 {
			l.State = StateSuspended
		}
	}
}

// localDir is the folder of a job in the run directory.
func localDir(runDir, dir string) string { return filepath.Join(runDir, rundir.Jobs, Key(dir)) }

// Locals returns the long jobs of this host, by name.
func Locals(runDir string) ([]Local, error) {
	found, err := entries(filepath.Join(runDir, rundir.Jobs), "")
	if err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	all := []Local{} // not nil: null is no list in JSON
	for _, folder := range found {
		l, err := readLocal(folder)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(l.Dir); errors.Is(err, fs.ErrNotExist) && l.PID == 0 && l.State != StateUnattended {
			continue // its directory was removed
		}
		l.settle()
		l.refreshMetrics(folder)
		all = append(all, l)
	}
	noteSuspended(runDir, all)
	slices.SortFunc(all, func(a, b Local) int { return strings.Compare(a.Name+"\x00"+a.Dir, b.Name+"\x00"+b.Dir) })
	return all, nil
}

// Involving finds the long job that a process belongs to or, with below, that is below it, and says so; nil
// if there is none. It reads no directory of a job, whose disk may hang.
func Involving(runDir string, pid int, below bool) (l *Local, meaning string, err error) {
	folders, err := entries(filepath.Join(runDir, rundir.Jobs), "")
	under, _ := proc.Tree(pid)
	for _, folder := range folders {
		l, err := readLocal(folder)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, "", err
		}
		first, tree := l.PID, []int{l.PID}
		if l.alive && l.Init != nil {
			if init, err := proc.IdentOf(l.Init.PID); err != nil || init != *l.Init {
				continue // it has just ended, or nobody can tell from this pid namespace
			}
			first = l.Init.PID
			sandboxed, _ := proc.Tree(first)
			tree = append(tree, sandboxed...)
		}
		state := ""
		if l.paused {
			l.State, state = StatePaused, "paused "
		}
		switch {
		case slices.Contains(tree, pid):
			return &l, fmt.Sprintf("belongs to the %slong job %s", state, l.Name), nil
		case below && slices.Contains(under, first):
			return &l, fmt.Sprintf("has the %slong job %s below it", state, l.Name), nil
		}
	}
	return nil, "", err
}

var localKind = records.Kind[Local]{Name: localName, Version: 1, Remedy: "remove it: the next cucriu run of the job writes it again"}

// readLocal reads what is known of a job, and looks whether that is still so.
func readLocal(folder string) (Local, error) {
	l, err := localKind.Read(folder)
	if err != nil {
		return l, fmt.Errorf("record of a job in the run directory: %w", err)
	}
	if l.alive, _ = sandbox.IsAlive(folder); !l.alive && l.Init != nil { // an adopted job may have lost its keeper
		init, err := proc.Reopen(*l.Init)
		if l.alive = err == nil; l.alive {
			err = init.Close()
		}
		if err != nil && !errors.Is(err, proc.ErrGone) && !errors.Is(err, proc.ErrElsewhere) {
			return l, err
		}
	}
	if l.alive {
		l.paused, _ = inside.IsPaused(filepath.Join(folder, rundir.Inner))
	}
	conn, err := dial(folder)
	if err == nil {
		if stoppedListener(conn) != 0 {
			l.State, l.Next = StateHalted, time.Time{}
		}
		return l, conn.Close()
	}
	l.PID, l.Next = 0, time.Time{}
	if l.alive {
		if l.State = StateUnattended; l.isOver() {
			l.State = StateUntold
		}
		return l, nil
	}
	if slices.Contains([]State{StateBegins, StateRunning, StateCheckpoint, StatePaused}, l.State) {
		l.State = StateGone
	}
	return l, nil
}

// isOver reports whether of a job only the first process of its sandbox is left, which waits to tell how the job ended.
func (l *Local) isOver() bool {
	if l.Init == nil || l.Command == nil {
		return false
	}
	init, err := proc.IdentOf(l.Init.PID)
	children, childrenErr := proc.Children(l.Init.PID)
	if err != nil || init != *l.Init || childrenErr != nil || len(children) > 0 {
		return false
	}
	command, err := proc.Reopen(*l.Command)
	if err == nil {
		command.Close()
	}
	return errors.Is(err, proc.ErrGone)
}

// statusFile is where a supervisor writes what the host knows of its job.
type statusFile struct {
	mutex  sync.Mutex
	folder string
	now    Local
	shown  func(Local) // is told of each change, if it is not nil
}

// note changes what the host knows of the job. A full disk does not stop a job.
func (f *statusFile) note(change func(*Local)) { _ = f.write(change) }

func (f *statusFile) write(change func(*Local)) (err error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	change(&f.now)
	if f.folder != "" {
		err = localKind.Write(f.folder, f.now)
	}
	if f.shown != nil {
		f.shown(f.now)
	}
	return err
}

func (f *statusFile) is(state State) { f.note(func(l *Local) { l.State = state }) }

// noteEvent notes what an event says of the job.
func (f *statusFile) noteEvent(e Event) {
	f.note(func(l *Local) {
		switch e.Event {
		case EventStarted, EventResumed:
			l.WorkSince, l.Missed = e.At, 0
		case EventCheckpoint:
			l.Checkpoint = &Made{Name: e.Checkpoint, At: e.At}
			if l.Missed = 0; !l.WorkSince.IsZero() { // else it has ended since
				l.WorkSince = e.At.Add(-e.Duration)
			}
		case EventFailed, EventWaiting:
			l.Failure = &Failure{At: e.At, Message: e.Message}
		case EventPreempted, EventStopped, EventMoved:
			l.State, l.Next = map[string]State{EventPreempted: StatePreempted, EventStopped: StateStopped, EventMoved: StateMoved}[e.Event], time.Time{}
		case EventEnded:
			l.State, l.Next, l.ExitStatus = StateEnded, time.Time{}, &e.Status
			if e.Status == 0 {
				l.State = StateFinished
			}
		}
	})
}

// begin makes the job known in its folder of the run directory.
func (f *statusFile) begin(folder string, l Local) error {
	f.folder = folder
	return f.write(func(now *Local) { *now = l })
}

// known is what the host knows of the job.
func (f *statusFile) known() Local {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.now
}

// newest is the newest checkpoint; nil if there is none.
func (f *statusFile) newest() *Made {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.now.Checkpoint
}

// failure is what went wrong last; nil if nothing did.
func (f *statusFile) failure() *Failure {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.now.Failure
}

// workSince is since when the job has done work that is in no checkpoint.
func (f *statusFile) workSince() time.Time {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.now.WorkSince
}

// runs notes that the job runs, or is paused, and when the next checkpoint is due; zero is never.
func (f *statusFile) runs(paused bool, next time.Time) {
	f.note(func(l *Local) {
		l.ExitStatus = nil // of an end before this start
		if l.State, l.Next = StateRunning, next; paused {
			l.State, l.Next = StatePaused, time.Time{}
		}
	})
}

// end notes that the supervisor ends. Its error matters only if no event has told of it.
func (f *statusFile) end(err error) {
	f.note(func(l *Local) {
		l.PID, l.Next = 0, time.Time{}
		if err == nil {
			return
		}
		l.Failure = &Failure{At: time.Now().UTC(), Message: err.Error()}
		if l.State == StateBegins {
			l.State = StateFailed
		}
	})
}

// underWay says what a request has to wait for; "" if for nothing.
func (f *statusFile) underWay() string {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	switch f.now.State {
	case StateBegins:
		return "the job is being started or resumed"
	case StateCheckpoint:
		return "a checkpoint is being made"
	}
	return ""
}
