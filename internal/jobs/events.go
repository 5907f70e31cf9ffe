package jobs

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
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
	EventEnded      = "ended"
	EventPaused     = "paused"
	EventUnpaused   = "unpaused"
	EventTrial      = "trial"   // a restore was tried
	EventWaiting    = "waiting" // something does not end
	EventMoving     = "moving"  // it was ended here, with a checkpoint, to move to another host
	EventMoved      = "moved"   // it runs elsewhere
)

// reporter tells people what happens to a job.
type reporter struct {
	dir, name string // of the job
	messages  io.Writer
	status    statusFile
	metrics   *metrics
	console   *console // joins our terminal to the job's; nil if it does not
}

// tell writes an event into the job's log, and then tells the user of it. A full disk does not stop
// a job.
func (r *reporter) tell(e Event) {
	e.At = time.Now().UTC()
	r.log(e)
	r.status.noteEvent(e)
	r.metrics.note(e)
	r.say(e.Message)
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
	end := "\n"
	if r.console.isRaw() {
		end = "\r\n"
	}
	fmt.Fprintf(r.messages, "cucriu: %s%s", message, end)
}

// sayError says what went wrong and stops nothing.
func (r *reporter) sayError(err error) {
	if err != nil {
		r.say(err.Error())
	}
}
