package hooks

import (
	"slices"
	"time"

	"cucriu/hooks/timeline"
)

const (
	byWatcher = "watcher"
	byRecover = "recover"
)

// span does something for one process of the session, and notes how long it
// took. It may be called from several goroutines, and without a session, which
// notes nothing.
func (s *Session) span(pid int, name string, do func() error) error {
	if s == nil {
		return do()
	}
	start := s.now()
	err := do()
	s.notePhase(start, timeline.Phase{Name: name, PID: pid, By: s.by, Failed: err != nil})
	return err
}

// notePhase notes a span that ends now.
func (s *Session) notePhase(start time.Duration, p timeline.Phase) {
	p.Start, p.Seconds = start.Seconds(), (s.now() - start).Seconds()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Phases.Add(p)
}

// noteCriu notes that criu worked from the last stage of ours until now. After
// anything else than a stage it was not criu's time.
func (s *Session) noteCriu() {
	if len(s.Phases) == 0 {
		return
	}
	last := s.Phases[len(s.Phases)-1]
	if slices.Contains([]string{"pre-dump", "post-dump", "pre-restore", "pre-resume"}, last.By) {
		s.notePhase(last.End(), timeline.Phase{Name: "criu", By: timeline.ByCriu})
	}
}

// now is the time since the session was created.
func (s *Session) now() time.Duration { return timeline.SinceBoot() - s.CreatedClock }

// Timeline is what is known of where the session's time went.
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
