package hooks

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// TimelineName is the file name of a dump's timeline in the image directory. It
// ends with criu's last page: publishing the image and ending the job come later.
const TimelineName = "cucriu-timeline.json"

// timelineFile is the file name of a timeline in its session's directory.
const timelineFile = "timeline.json"

const (
	maxTimelineBytes = 8 << 20
	maxTimelineName  = 64      // bytes of a name in it
	maxTimelineTime  = 1 << 50 // microseconds: so that sums do not overflow
	maxPID           = 1 << 22 // the kernel's
	timelineSpan     = "X"     // Chrome's complete event
	timelineRow      = "M"     // Chrome's metadata event
	timelineRowName  = "process_name"
)

// Timeline is where the time of a session went, in Chrome's trace event format:
// Perfetto and chrome://tracing open its JSON.
type Timeline struct {
	Events []TimelineEvent   `json:"traceEvents"`
	Unit   string            `json:"displayTimeUnit"` // of the viewer
	About  map[string]string `json:"otherData"`       // the session
}

// TimelineEvent is a span, or the name of a row. There is one row for the
// session, with criu's pid, and one for each CUDA process: to the format they are
// processes, with a thread for what ran at once.
type TimelineEvent struct {
	Name     string            `json:"name"`
	Category string            `json:"cat,omitempty"` // who made the span: see [Phase.By]
	Type     string            `json:"ph"`
	Start    int64             `json:"ts"`            // microseconds since the session was created
	Duration int64             `json:"dur,omitempty"` // microseconds
	PID      int               `json:"pid"`           // as the session's host saw it
	TID      int               `json:"tid"`           // the same, or for what ran beside it a number that is no pid
	Args     map[string]string `json:"args,omitempty"`
}

// Spans are the events that are spans, in the order of their beginnings; one
// that contains others comes before them.
func (t Timeline) Spans() []TimelineEvent {
	return slices.DeleteFunc(slices.Clone(t.Events), func(e TimelineEvent) bool { return e.Type != timelineSpan })
}

// Row is the name of the row that an event is in.
func (t Timeline) Row(event TimelineEvent) string {
	for _, e := range t.Events {
		if e.Type == timelineRow && e.PID == event.PID {
			return e.Args["name"]
		}
	}
	return ""
}

// Failed reports whether the step of a span failed.
func (e TimelineEvent) Failed() bool { return e.Args["failed"] != "" }

// Timeline is what is known of where the session's time went.
func (s *Session) Timeline() Timeline {
	t := Timeline{Unit: "ms", About: map[string]string{
		"session": s.Name(), "kind": string(s.Kind), "created": s.Created.Format(time.RFC3339Nano),
	}}
	if s.Outcome != "" {
		t.About["outcome"] = string(s.Outcome)
	}
	row := func(pid int, name string) {
		t.Events = append(t.Events, TimelineEvent{Name: timelineRowName, Type: timelineRow, PID: pid, TID: pid, Args: map[string]string{"name": name}})
	}
	by := byCriu
	if s.Kind == KindSuspend {
		by = "cucriu"
	}
	row(s.Criu.PID, string(s.Kind)+" by "+by)
	for _, member := range s.Members {
		row(member.PID, member.Name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var spans []TimelineEvent
	for _, phase := range s.Phases {
		span := TimelineEvent{Name: phase.Name, Category: cmp.Or(phase.By, "command"), Type: timelineSpan, Start: duration(phase.Start).Microseconds(), PID: cmp.Or(phase.PID, s.Criu.PID)}
		// Both ends rounded alike, so that what is nested stays nested.
		span.Duration = phase.end().Microseconds() - span.Start
		if phase.Failed {
			span.Args = map[string]string{"failed": "true"}
		}
		spans = append(spans, span)
	}
	slices.SortStableFunc(spans, func(a, b TimelineEvent) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(b.Duration, a.Duration))
	})
	placeSpans(spans)
	t.Events = append(t.Events, spans...)
	return t
}

// placeSpans puts each span into the first thread of its row where it lies
// inside another, or apart from all: the format knows nothing else.
func placeSpans(spans []TimelineEvent) {
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

// writeTimeline writes the timeline as it is until now. Nothing rests on it, so
// it need not be on disk before the job goes on.
func (s *Session) writeTimeline(path string) error {
	data, err := json.Marshal(s.Timeline())
	if err != nil {
		return fmt.Errorf("timeline: %w", err)
	}
	// Another dump's, in a directory that is used again.
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

// ReadTimeline reads and checks the timeline in an image directory. The error is
// [os.ErrNotExist] if there is none.
func ReadTimeline(dir string) (Timeline, error) {
	path := filepath.Join(dir, TimelineName)
	data, err := readPlain(path, maxTimelineBytes)
	if err != nil {
		return Timeline{}, fmt.Errorf("timeline: %w", err)
	}
	t, err := ParseTimeline(data)
	if err != nil {
		return Timeline{}, fmt.Errorf("timeline %s is damaged: %w: the image does without it", path, err)
	}
	return t, nil
}

// ParseTimeline reads a timeline and refuses one that no session can have
// written.
func ParseTimeline(data []byte) (Timeline, error) {
	var t Timeline
	if err := json.Unmarshal(data, &t); err != nil {
		return Timeline{}, err
	}
	if len(t.Events) == 0 || len(t.Events) > maxPhases+maxProcesses {
		return Timeline{}, fmt.Errorf("it has %d events", len(t.Events))
	}
	for i, e := range t.Events {
		if err := e.validate(); err != nil {
			return Timeline{}, fmt.Errorf("event %d: %w", i, err)
		}
	}
	return t, nil
}

func (e TimelineEvent) validate() error {
	for _, text := range []string{e.Name, e.Category, e.Args["name"]} {
		if len(text) > maxTimelineName || !isPrintable(text) {
			return fmt.Errorf("it has the name %.100q", text)
		}
	}
	switch {
	case e.Type != timelineSpan && e.Type != timelineRow:
		return fmt.Errorf("it is of type %.100q", e.Type)
	case e.Start < 0 || e.Duration < 0 || e.Start > maxTimelineTime || e.Duration > maxTimelineTime:
		return fmt.Errorf("it begins at %d µs and takes %d µs", e.Start, e.Duration)
	case e.PID <= 0:
		return fmt.Errorf("it is of process %d", e.PID)
	}
	return nil
}
