package jobs

import (
	"context"
	"fmt"
	"slices"
	"time"

	"cucriu/hooks/image"
	"cucriu/internal/jobs/inside"
	"cucriu/internal/jobs/store"
)

// trial is the trial restore that runs beside the job, if there is one.
type trial struct {
	end   context.CancelFunc // nil if there was none
	ended chan struct{}
}

// cut ends the trial that is under way.
func (t *trial) cut() {
	if t.end != nil {
		t.end()
	}
}

// await waits until a trial that was cut has ended. Nobody waits long for one that hangs.
func (t *trial) await() {
	if t.ended == nil {
		return
	}
	select {
	case <-t.ended:
	case <-time.After(exitPatience):
	}
}

// mostAttempts is how often a trial is attempted that its sandbox makes fail.
const mostAttempts = 3

// try tries whether a checkpoint can be restored, unless one with the same kinds of processes and
// files was tried before. It runs beside the job, until the next checkpoint at the latest.
func (s *checkpointer) try(c store.Checkpoint) {
	if !s.Probe {
		return
	}
	before := s.lastTrial()
	tried := before.Kinds
	if before.Outcome == image.TrialNone && before.Attempts < mostAttempts {
		tried = ""
	}
	ctx, end := context.WithCancel(s.housekeeping)
	ended := make(chan struct{})
	s.trial.end, s.trial.ended = end, ended
	at := *s.instance // which may be closed while this runs
	go func() {
		defer close(ended)
		defer end()
		a, err := at.ask(ctx, inside.Request{Op: inside.Probe, Images: c.Dir, Tried: tried})
		switch {
		case ctx.Err() != nil || !at.sandbox.Alive():
			return // the next one is tried
		case err != nil:
			a.Trial = &image.Trial{At: time.Now().UTC(), Outcome: image.TrialNone, Why: err.Error()}
		case a.Trial.Kinds != "" && a.Trial.Kinds == tried: // and what is said of that one holds for this
			s.sayError(s.store.NoteTrial(c.Name, before))
			return
		}
		if a.Trial.Outcome == image.TrialNone {
			a.Trial.Attempts = 1
			if a.Trial.Kinds == before.Kinds {
				a.Trial.Attempts += before.Attempts
			}
		}
		s.noteTrial(c, *a.Trial)
	}()
}

// lastTrial returns the trial of the newest checkpoint that has one.
func (s *checkpointer) lastTrial() image.Trial {
	all, _ := s.store.Checkpoints() // what cannot be read is tried again
	for _, c := range slices.Backward(all) {
		if c.Trial != nil {
			return *c.Trial
		}
	}
	return image.Trial{}
}

func (s *checkpointer) noteTrial(c store.Checkpoint, t image.Trial) {
	s.status.note(func(l *Local) { l.Trial = &t })
	err := s.store.NoteTrial(c.Name, t)
	e := Event{Event: EventTrial, Checkpoint: c.Name, Message: fmt.Sprintf("checkpoint %s: a trial restore without the GPUs has shown that it can be restored", c.Name)}
	switch t.Outcome {
	case image.TrialFails:
		e.Event, e.Message = EventFailed, fmt.Sprintf("checkpoint %s cannot be restored, as a trial restore has shown, and neither can others made in the current state of the job: %s", c.Name, t.Why)
	case image.TrialNone:
		e.warns, e.Message = true, fmt.Sprintf("checkpoint %s: no conclusive trial restore: %s", c.Name, t.Why)
	}
	if err != nil { // the directory may be another one now
		s.say(fmt.Sprintf("%s (%v)", e.Message, err))
		return
	}
	s.tell(e)
}
