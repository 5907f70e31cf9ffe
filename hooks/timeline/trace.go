package timeline

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"cucriu/internal/kit/proc"
)

const (
	maxName      = 64      // bytes of a name in the timeline
	maxTime      = 1 << 50 // microseconds; low enough that sums do not overflow
	maxRows      = 1 << 14
	maxPID       = 1 << 22 // the kernel's limit
	spanType     = "X"     // Chrome's complete event
	rowType      = "M"     // Chrome's metadata event
	rowNameEvent = "process_name"
)

// Trace says where the time of a session went, in Chrome's trace event format. Perfetto and
// chrome://tracing can open its JSON.
type Trace struct {
	Events []Event           `json:"traceEvents"`
	Unit   string            `json:"displayTimeUnit"` // for the viewer
	About  map[string]string `json:"otherData"`       // about the session
}

// Event is a span, or the name of a row. There is one row for the session, with criu's pid, and
// one for each CUDA process. In the format each row is a process, with a further thread for
// spans that overlap.
type Event struct {
	Name     string            `json:"name"`
	Category string            `json:"cat,omitempty"` // whose time it was: see [Phase.By]
	Type     string            `json:"ph"`
	Start    int64             `json:"ts"`            // microseconds since the session was created
	Duration int64             `json:"dur,omitempty"` // microseconds
	PID      int               `json:"pid"`           // as the session's host saw it
	TID      int               `json:"tid"`           // the pid, or a number that is no pid for a span that overlaps others
	Args     map[string]string `json:"args,omitempty"`
}

// Spans returns the events that are spans, in the order in which they began. A span that
// contains others comes before them.
func (t Trace) Spans() []Event {
	return slices.DeleteFunc(slices.Clone(t.Events), func(e Event) bool { return e.Type != spanType })
}

// RowOf returns the name of the row that an event is in.
func (t Trace) RowOf(event Event) string {
	for _, e := range t.Events {
		if e.Type == rowType && e.PID == event.PID {
			return e.Args["name"]
		}
	}
	return ""
}

// Failed reports whether the phase that a span shows has failed.
func (e Event) Failed() bool { return e.Args["failed"] != "" }

// Row is a row of the drawing: the process that its spans are about.
type Row struct {
	PID  int
	Name string
}

// New draws phases. The first row is for the phases that are about the whole session. about
// says what the timeline is of.
func New(about map[string]string, rows []Row, phases Phases) Trace {
	t := Trace{Unit: "ms", About: about}
	for _, row := range rows {
		t.Events = append(t.Events, Event{Name: rowNameEvent, Type: rowType, PID: row.PID, TID: row.PID, Args: map[string]string{"name": row.Name}})
	}
	var spans []Event
	for _, phase := range phases {
		span := Event{Name: phase.Name, Category: cmp.Or(phase.By, "command"), Type: spanType, Start: exactly(phase.Start).Microseconds(), PID: cmp.Or(phase.PID, rows[0].PID)}
		// Both ends are rounded in the same way, so that nested spans stay nested.
		span.Duration = phase.End().Microseconds() - span.Start
		if phase.Failed {
			span.Args = map[string]string{"failed": "true"}
		}
		spans = append(spans, span)
	}
	slices.SortStableFunc(spans, func(a, b Event) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(b.Duration, a.Duration))
	})
	placeSpans(spans)
	t.Events = append(t.Events, spans...)
	return t
}

// placeSpans puts each span into the first thread of its row in which it lies inside another
// span, or apart from all of them. The format allows nothing else.
func placeSpans(spans []Event) {
	open := make(map[int][]int64) // by thread: the ends of the spans that contain what comes next, innermost last
	for i := range spans {
		span := &spans[i]
		end := span.Start + span.Duration
		for span.TID = span.PID; ; span.TID += maxPID {
			ends := open[span.TID]
			for len(ends) > 0 && ends[len(ends)-1] <= span.Start {
				ends = ends[:len(ends)-1]
			}
			if len(ends) == 0 || end <= ends[len(ends)-1] {
				open[span.TID] = append(ends, end)
				break
			}
		}
	}
}

// Parse reads a timeline and refuses one that no session can have written.
func Parse(data []byte) (Trace, error) {
	var t Trace
	if err := json.Unmarshal(data, &t); err != nil {
		return Trace{}, err
	}
	if len(t.Events) == 0 || len(t.Events) > maxPhases+maxRows {
		return Trace{}, fmt.Errorf("it has %d events", len(t.Events))
	}
	for i, e := range t.Events {
		if err := e.validate(); err != nil {
			return Trace{}, fmt.Errorf("event %d: %w", i, err)
		}
	}
	return t, nil
}

func (e Event) validate() error {
	for _, text := range []string{e.Name, e.Category, e.Args["name"]} {
		if len(text) > maxName || text != proc.Printable(text) {
			return fmt.Errorf("it has the name %.100q", text)
		}
	}
	switch {
	case e.Type != spanType && e.Type != rowType:
		return fmt.Errorf("it is of type %.100q", e.Type)
	case e.Start < 0 || e.Duration < 0 || e.Start > maxTime || e.Duration > maxTime:
		return fmt.Errorf("it has an invalid time: it begins at %d µs and takes %d µs", e.Start, e.Duration)
	case e.PID <= 0:
		return fmt.Errorf("it is of process %d", e.PID)
	}
	return nil
}

// Write writes the timeline to a file. No other step depends on it, so it need not be on disk
// before the job resumes.
func (t Trace) Write(path string) error {
	data, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("timeline: %w", err)
	}
	// In a directory that is used again, this is the timeline of another dump.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("timeline: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("timeline: %w", err)
	}
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("timeline: %w", errors.Join(err, os.Remove(path)))
	}
	return nil
}
