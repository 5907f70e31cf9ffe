package journal

import (
	"path/filepath"
	"slices"
	"time"

	"cucriu/criuutil"
	"cucriu/internal/timeline"
)

// Span does something for one process of the session, and notes how long it took. It is safe for use by
// several goroutines. On a nil session it notes nothing.
func (s *Session) Span(pid int, name string, do func() error) error {
	if s == nil {
		return do()
	}
	start := s.now()
	err := do()
	s.NotePhase(start, timeline.Phase{Name: name, PID: pid, By: s.By, Failed: err != nil})
	return err
}

// NotePhase notes a phase that ends now.
func (s *Session) NotePhase(start time.Duration, p timeline.Phase) {
	p.Start, p.Seconds = start.Seconds(), (s.now() - start).Seconds()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Phases.Add(p)
}

// NoteCriu notes that criu worked from the end of the last phase until now. It does so only if that
// phase belonged to one of criu's stages: otherwise the time since then was not criu's.
func (s *Session) NoteCriu() {
	if len(s.Phases) == 0 {
		return
	}
	last := s.Phases[len(s.Phases)-1]
	if slices.Contains([]string{criuutil.StagePreDump, criuutil.StagePostDump, criuutil.StagePreRestore, criuutil.StagePreResume}, last.By) {
		s.NotePhase(last.End(), timeline.Phase{Name: "criu", By: timeline.ByCriu})
	}
}

// now is the time since the session was created.
func (s *Session) now() time.Duration { return timeline.SinceBoot() - s.CreatedClock }

// Timeline returns what is known about where the session's time went.
func (s *Session) Timeline() timeline.Trace {
	about := map[string]string{"session": s.Name(), "kind": string(s.Kind), "created": s.Created.Format(time.RFC3339Nano)}
	if s.Outcome != "" {
		about["outcome"] = string(s.Outcome)
	}
	by := timeline.ByCriu
	if s.Kind == KindSuspend {
		by = "cucriu"
	}
	rows := []timeline.Row{{PID: s.Criu.PID, Name: string(s.Kind) + " by " + by}}
	for _, member := range s.Members {
		rows = append(rows, timeline.Row{PID: member.PID, Name: member.Name})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return timeline.New(about, rows, s.Phases)
}

// WriteTimeline writes the timeline into the session's directory. No other step depends on it.
func (s *Session) WriteTimeline() error {
	return s.Timeline().Write(filepath.Join(s.dir, timelineFile))
}
