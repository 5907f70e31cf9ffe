package jobs

import (
	"encoding/json"
	"fmt"
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
)

// tell writes an event into the job's log, and then tells the user of it. A full disk does not stop
// a job.
func (s *supervisor) tell(e Event) {
	e.At = time.Now().UTC()
	if data, err := json.Marshal(e); err == nil {
		s.log(append(data, '\n'))
	}
	s.board.noteEvent(e)
	s.metrics.note(e)
	s.say(e.Message)
}

func (s *supervisor) log(line []byte) {
	log, err := os.OpenFile(filepath.Join(s.Dir, eventsName), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return
	}
	defer log.Close()
	_, _ = log.Write(line)
}

func (s *supervisor) say(message string) {
	end := "\n"
	if s.console.isRaw() {
		end = "\r\n"
	}
	fmt.Fprintf(s.Messages, "cucriu: %s%s", message, end)
}
