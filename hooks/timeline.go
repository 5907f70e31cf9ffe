package hooks

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Phase is a span of a session's time: a step of the session, or what a step
// did for one process.
type Phase struct {
	Name string `json:"name"`
	// PID is the process that the span is about, as this host sees it; 0 if it
	// is about the session.
	PID     int     `json:"pid,omitempty"`
	Start   float64 `json:"start"` // seconds since the session was created
	Seconds float64 `json:"seconds"`
	// By is whose time it was: the stage of criu that we were called at, criu
	// itself, the watcher, or recover; empty for the command that drives criu.
	By     string `json:"by,omitempty"`
	Failed bool   `json:"failed,omitempty"`
}

func (p Phase) end() time.Duration { return duration(p.Start) + duration(p.Seconds) }

// duration is exact: the journal's seconds were whole nanoseconds.
func duration(seconds float64) time.Duration {
	return time.Duration(math.Round(seconds * float64(time.Second)))
}

// Phases are the spans of a session in the order of their ends.
type Phases []Phase

// Steps are the spans that are about the session as a whole and ended well.
func (p Phases) Steps() Phases {
	return slices.DeleteFunc(slices.Clone(p), func(phase Phase) bool { return phase.PID != 0 || phase.Failed })
}

// String lists the steps with the time that each took.
func (p Phases) String() string {
	var parts []string
	for _, phase := range p.Steps() {
		parts = append(parts, fmt.Sprintf("%s %.1f ms", phase.Name, 1000*phase.Seconds))
	}
	return strings.Join(parts, ", ")
}

const (
	byCriu    = "criu"
	byWatcher = "watcher"
	byRecover = "recover"

	// maxPhases bounds the journal of a job that the watcher tries for days to
	// bring back.
	maxPhases = 1 << 14
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
	s.notePhase(start, Phase{Name: name, PID: pid, By: s.by, Failed: err != nil})
	return err
}

// notePhase notes a span that ends now.
func (s *Session) notePhase(start time.Duration, p Phase) {
	p.Start, p.Seconds = start.Seconds(), (s.now() - start).Seconds()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.Phases) < maxPhases {
		s.Phases = append(s.Phases, p)
	}
}

// noteCriu notes that criu worked from the last stage of ours until now. After
// anything else than a stage it was not criu's time.
func (s *Session) noteCriu() {
	if len(s.Phases) == 0 {
		return
	}
	last := s.Phases[len(s.Phases)-1]
	if slices.Contains([]string{"pre-dump", "post-dump", "pre-restore", "pre-resume"}, last.By) {
		s.notePhase(last.end(), Phase{Name: "criu", By: byCriu})
	}
}

// now is the time since the session was created.
func (s *Session) now() time.Duration { return sinceBoot() - s.CreatedClock }

// sinceBoot is the one clock that all processes of a session share and that
// nobody sets.
func sinceBoot() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // fails for unknown clocks only
	return time.Duration(now.Nano())
}
