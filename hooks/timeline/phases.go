package timeline

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

// End is when it ended, since the session was created.
func (p Phase) End() time.Duration { return duration(p.Start) + duration(p.Seconds) }

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
	// ByCriu is who had the time that was criu's.
	ByCriu = "criu"

	// maxPhases bounds the journal of a job that the watcher tries for days to
	// bring back.
	maxPhases = 1 << 14
)

// Add notes a phase.
func (p *Phases) Add(phase Phase) {
	if len(*p) < maxPhases {
		*p = append(*p, phase)
	}
}

// sinceBoot is the one clock that all processes of a session share and that
// nobody sets.
func SinceBoot() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // fails for unknown clocks only
	return time.Duration(now.Nano())
}
