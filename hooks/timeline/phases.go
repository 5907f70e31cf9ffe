package timeline

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Phase is a span of a session's time: a step of the session, or the part of a step that was
// done for one process.
type Phase struct {
	Name string `json:"name"`
	// PID is the process that the phase is about, as this host sees it; 0 if the phase is about
	// the whole session.
	PID     int     `json:"pid,omitempty"`
	Start   float64 `json:"start"` // seconds since the session was created
	Seconds float64 `json:"seconds"`
	// By says whose time it was: the stage at which criu called us, criu itself, the watcher,
	// or recover. It is empty for the command that drives criu.
	By     string `json:"by,omitempty"`
	Failed bool   `json:"failed,omitempty"`
}

// End returns when the phase ended, as time since the session was created.
func (p Phase) End() time.Duration { return exactly(p.Start) + exactly(p.Seconds) }

// exactly is exact: the seconds were whole nanoseconds before they were written to the
// journal.
func exactly(seconds float64) time.Duration {
	return time.Duration(math.Round(seconds * float64(time.Second)))
}

// Phases are the phases of a session, in the order in which they ended.
type Phases []Phase

// Steps returns the phases that are about the whole session and did not fail.
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
	// ByCriu is the value of [Phase.By] for the time that criu itself took.
	ByCriu = "criu"

	// maxPhases limits the size of the journal of a job that the watcher tries to bring back
	// for days.
	maxPhases = 1 << 14
)

// Add appends a phase, up to a fixed limit.
func (p *Phases) Add(phase Phase) {
	if len(*p) < maxPhases {
		*p = append(*p, phase)
	}
}

// SinceBoot returns the time since boot, on a clock that all processes of a session share and
// that nobody can set.
func SinceBoot() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // fails only for unknown clocks
	return time.Duration(now.Nano())
}
