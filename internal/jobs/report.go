package jobs

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cucriu/hooks/timeline"
	"cucriu/internal/jobs/inside"
	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/quote"
)

const eventsName = "events.jsonl" // in the directory of the job

// Event is something that happened to a job, in its log.
type Event struct {
	At         time.Time     `json:"at"`
	Event      string        `json:"event"`
	Message    string        `json:"message"`
	Checkpoint string        `json:"checkpoint,omitempty"`
	Pause      time.Duration `json:"pause_ns,omitempty"`
	Duration   time.Duration `json:"duration_ns,omitempty"`
	Bytes      int64         `json:"bytes,omitempty"`
	NewBytes   int64         `json:"new_bytes,omitempty"`
	Status     int           `json:"status,omitempty"`
	// Phases are the parts of a start from an image or a checkpoint, in order.
	Phases timeline.Phases `json:"phases,omitempty"`

	warns bool // people are told of it even if they want to hear of warnings and errors only
}

// The kinds of events.
const (
	EventStarted    = "started"
	EventAttached   = "attached"
	EventResumed    = "resumed"
	EventCheckpoint = "checkpoint"
	EventFailed     = "failed"  // a checkpoint was not made, or did not restore
	EventSkipped    = "skipped" // a checkpoint
	EventPreempted  = "preempted"
	EventStopped    = "stopped" // cucriu jobs stop
	EventEnded      = "ended"
	EventRestarted  = "restarted" // it has ended by itself, and is started again
	EventPaused     = "paused"
	EventUnpaused   = "unpaused"
	EventTrial      = "trial"   // a restore was tried
	EventWaiting    = "waiting" // something does not end
	EventMoving     = "moving"  // it was ended here, with a checkpoint, to move to another host
	EventMoved      = "moved"   // it runs elsewhere
)

// news are the kinds of events that are neither warnings nor errors, with status 0.
func news() []string {
	return []string{
		EventStarted, EventAttached, EventResumed, EventCheckpoint, EventPreempted, EventStopped, EventEnded,
		EventRestarted, EventPaused, EventUnpaused, EventTrial, EventMoving, EventMoved,
	}
}

// reporter tells people what happens to a job.
type reporter struct {
	dir, name string // of the job
	messages  io.Writer
	quiet     bool // only warnings and errors are said
	status    statusFile
	metrics   *metrics

	toldMutex sync.Mutex
	told      []string // warnings about the job, each of which is told once
}

// toldNow adds warnings to those that were told in the sandbox, and returns these. A trial restore runs beside other
// requests.
func (r *reporter) toldNow(more []string) []string {
	r.toldMutex.Lock()
	defer r.toldMutex.Unlock()
	r.told = append(r.told, more[:min(len(more), max(0, inside.MaxTold-len(r.told)))]...)
	return slices.Clone(r.told)
}

// tell writes an event into the job's log, and then tells the user of it. A full disk does not stop
// a job.
func (r *reporter) tell(e Event) {
	e.At = time.Now().UTC()
	r.log(e)
	r.status.noteEvent(e)
	r.metrics.note(e)
	if slices.Contains(news(), e.Event) && e.Status == 0 && !e.warns {
		r.inform(e.Message)
	} else {
		r.say(e.Message)
	}
}

// inform says what is neither a warning nor an error.
func (r *reporter) inform(message string) {
	if !r.quiet {
		r.say(message)
	}
}

func (r *reporter) log(e Event) {
	data, err := json.Marshal(e)
	if err != nil {
		return
	}
	log, err := os.OpenFile(filepath.Join(r.dir, eventsName), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return
	}
	defer log.Close()
	_, _ = log.Write(append(data, '\n'))
}

func (r *reporter) say(message string) {
	fmt.Fprintf(r.messages, "cucriu: %s\n", quote.Lines(message))
}

// sayError says what went wrong and stops nothing.
func (r *reporter) sayError(err error) {
	if err != nil {
		r.say(err.Error())
	}
}

const (
	// leastSlow is how long something must have taken before people are told.
	leastSlow = time.Minute
	// slowFactor is how many times longer than expected it must have taken, too.
	slowFactor = 3
)

// tellIfSlow tells people, less and less often, that something has not ended, until over is called.
// expected is how long it takes, 0 if that is not known. waits says what it waits for.
func (r *reporter) tellIfSlow(what string, expected time.Duration, waits func() string) (over func()) {
	return r.tellEvery(max(failpoint.Patience(leastSlow), slowFactor*expected), what, waits)
}

func (r *reporter) tellEvery(wait time.Duration, what string, waits func() string) (over func()) {
	done := make(chan struct{})
	go func() {
		for begun := time.Now(); ; wait *= 2 {
			select {
			case <-done:
				return
			case <-time.After(wait):
			}
			r.tellWaiting(fmt.Sprintf("%s: %s has not ended after %v: %s", r.name, what, time.Since(begun).Round(time.Second), waits()))
		}
	}()
	return sync.OnceFunc(func() { close(done) })
}

// tellWaiting tells that something does not end. The disk with the log may be what hangs, so all
// else comes first.
func (r *reporter) tellWaiting(message string) {
	e := Event{At: time.Now().UTC(), Event: EventWaiting, Message: message}
	r.say(message)
	go func() {
		r.status.noteEvent(e)
		r.log(e)
	}()
}

// inSandbox says what a program in the sandbox waits for, given the pid of what has brought it there.
func inSandbox(pid int, job *proc.Process) string {
	ours, err := proc.Tree(pid)
	if err != nil {
		return "its programs are ending"
	}
	all := ours
	if job != nil {
		if tree, err := proc.Tree(job.PID); err == nil {
			all = append(all, tree...)
		}
	}
	if stuck := waiting(all, true); stuck != "" {
		return stuck + " and ignores signals; a disk or file system may be hung"
	}
	if idle := waiting(ours[len(ours)-1:], false); idle != "" {
		return idle
	}
	return "its programs are working"
}

// ownWaitState says what this program waits for.
func ownWaitState() string {
	if stuck := waiting([]int{os.Getpid()}, true); stuck != "" {
		return stuck + " and ignores signals; a disk or file system may be hung"
	}
	return "it is working, or waiting for its turn"
}

// mostWaiting is how many threads are named.
const mostWaiting = 3

// waiting names threads that wait in the kernel, and in which function: those that no signal
// wakes, or all.
func waiting(pids []int, uninterruptible bool) string {
	var named []string
	for _, pid := range pids {
		tids, err := proc.Threads(pid)
		if err != nil {
			continue // it has ended
		}
		for _, tid := range tids {
			stat, err := proc.ThreadStat(pid, tid)
			if err != nil || stat.State == "R" || uninterruptible && stat.State != "D" {
				continue
			}
			if len(named) == mostWaiting {
				return strings.Join(named, ", ") + ", and more"
			}
			where, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(tid) + "/wchan")
			if len(where) <= 1 { // the kernel does not say
				where = []byte("the kernel")
			}
			named = append(named, fmt.Sprintf("%s (process %d) is waiting in %s", proc.Printable(stat.Comm), pid, where))
			if !uninterruptible {
				break
			}
		}
	}
	return strings.Join(named, ", ")
}
