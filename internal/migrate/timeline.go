package migrate

import (
	"context"
	"math"
	"os"
	"time"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/timeline"
)

// The clocks of two hosts have nothing in common. So the source asks the destination for its own,
// a few times: what it says was true about half way between question and answer.

// clockMessage is the destination's time since its boot.
type clockMessage struct {
	SinceBoot time.Duration `json:"since_boot"`
}

const clockQuestions = 5

// clocks is how much further the destination's time since boot is than ours, and by how much that
// may be wrong.
type clocks struct{ ahead, error time.Duration }

// compareClocks takes the quickest of several answers.
func (r *remote) compareClocks(ctx context.Context) (best clocks, err error) {
	best.error = math.MaxInt64
	for range clockQuestions {
		asked := timeline.SinceBoot()
		if err := r.Send(sayClock, nil); err != nil {
			return best, err
		}
		var there clockMessage
		if err := r.expect(ctx, sayClock, &there); err != nil {
			return best, err
		}
		half := (timeline.SinceBoot() - asked) / 2
		if half < best.error {
			best = clocks{ahead: there.SinceBoot - asked - half, error: half}
		}
	}
	return best, nil
}

// stepsOf returns the steps of the session that a hold belongs to, with times since boot.
func stepsOf(hook *hooks.Hook, id string) timeline.Phases {
	s, err := checkpoint.FindHeld(hook, id)
	if err != nil {
		return nil // there is less to see then
	}
	steps := s.Phases.Steps()
	for i := range steps {
		steps[i].Start += s.Clock.Seconds()
	}
	return steps
}

const (
	rowHere = iota + 1
	rowThere
)

// timeline puts together what both hosts did, on this host's clock.
func (s *treeSource) timeline() timeline.Trace {
	here, _ := os.Hostname()
	about := map[string]string{"migration": s.result.ID, "rows": "hosts", "clock_error": s.clocks.error.String()}
	rows := []timeline.Row{{PID: rowHere, Name: here}, {PID: rowThere, Name: s.result.Host}}
	var all timeline.Phases
	for _, p := range s.result.Phases {
		all.Add(timeline.Phase{Name: p.Name, PID: rowHere, Start: p.Begin.Seconds(), Seconds: p.Took.Seconds()})
	}
	add := func(row int, begun time.Duration, steps timeline.Phases) {
		for _, step := range steps {
			step.PID = row
			step.Start = max(0, step.Start-begun.Seconds())
			all.Add(step)
		}
	}
	add(rowHere, s.begunClock, stepsOf(s.hook, s.result.ID))
	add(rowThere, s.begunClock+s.clocks.ahead, s.there)
	return timeline.New(about, rows, all)
}
