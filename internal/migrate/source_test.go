package migrate

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"cucriu/hooks"
	"cucriu/internal/core/watch"
	"cucriu/internal/migrate/commit"
)

// fakeJob is a job that leaves, and notes what is asked of it.
type fakeJob struct {
	now   commit.SourceState
	calls []string
	// overtaken says that a watcher has brought the job back.
	overtaken bool
}

var (
	errForgotten = errors.New("forgotten")
	errReturned  = errors.New("returned")
)

func (f *fakeJob) prepare(context.Context) error      { return nil }
func (f *fakeJob) begin() error                       { return nil }
func (f *fakeJob) move(context.Context) error         { return nil }
func (f *fakeJob) state() (commit.SourceState, error) { return f.now, nil }

func (f *fakeJob) decide(_ context.Context, s commit.SourceState) error {
	if f.overtaken {
		f.overtaken, f.now = false, commit.Back
		return watch.ErrDecided
	}
	f.now = s
	f.calls = append(f.calls, string(s))
	return nil
}

func (f *fakeJob) returned(context.Context, string) error { return errReturned }
func (f *fakeJob) forgotten() error                       { return errForgotten }

func (f *fakeJob) told(_ context.Context, s commit.SourceState) error {
	f.calls = append(f.calls, "told "+string(s))
	return nil
}

func (f *fakeJob) undelivered(s commit.SourceState, _ error) string {
	return "undelivered " + string(s)
}

// TestTheDriverOfTheSource does what package commit says, for each answer of the destination.
func TestTheDriverOfTheSource(t *testing.T) {
	for name, c := range map[string]struct {
		event     commit.Event
		overtaken bool
		told      string // what the destination is to hear
		answer    string
		calls     []string
		err       error
	}{
		"it runs there":                     {event: commit.Ready, told: sayCommit, answer: sayRunning, calls: []string{"end", "end", "told end"}},
		"it stays here":                     {event: commit.Failed, told: sayAbort, answer: sayEnded, calls: []string{"back", "back", "told back"}},
		"it stays here, never known there":  {event: commit.Failed, told: sayAbort, answer: sayUnknown, calls: []string{"back", "back", "told back"}},
		"it has left, and is not there":     {event: commit.Ready, told: sayCommit, answer: sayUnknown, calls: []string{"end", "end"}, err: errForgotten},
		"it is returned to the source":      {event: commit.Ready, told: sayCommit, answer: sayReturned, calls: []string{"end"}, err: errReturned},
		"the watcher was quicker":           {event: commit.Ready, overtaken: true, told: sayAbort, answer: sayEnded, calls: []string{"back", "back", "told back"}},
		"the destination runs what is here": {event: commit.Failed, told: sayAbort, answer: sayRunning, calls: []string{"back"}, err: new(commit.ImpossibleError)},
	} {
		t.Run(name, func(t *testing.T) {
			job := &fakeJob{now: commit.Undecided, overtaken: c.overtaken}
			s := &sourceSession{job: job, hook: &hooks.Hook{Log: slog.New(slog.DiscardHandler)}, options: Options{Host: "b"}}
			here, there := connected(t)
			s.remote = here
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			go func() {
				if m, err := there.Receive(ctx); err == nil && m.Kind == c.told {
					_ = there.Send(c.answer, struct{}{})
				}
			}()
			err := s.handleEvent(c.event)
			impossible := errors.As(c.err, new(*commit.ImpossibleError)) && errors.As(err, new(*commit.ImpossibleError))
			if !errors.Is(err, c.err) && !impossible {
				t.Errorf("error %v, want %v", err, c.err)
			}
			if !slices.Equal(job.calls, c.calls) {
				t.Errorf("it did %q, want %q", job.calls, c.calls)
			}
		})
	}
}

// TestWhatWasGivenUpSaysWhy, and loses nothing that it says by itself.
func TestWhatWasGivenUpSaysWhy(t *testing.T) {
	full := errors.New("no space left")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(full)
	canceled := errors.Join(hooks.ErrNotBack, context.Canceled)
	if err := givenUp(ended, canceled); !errors.Is(err, full) || !errors.Is(err, hooks.ErrNotBack) {
		t.Errorf("%v", err)
	}
	for _, err := range []error{nil, full, hooks.ErrNotBack} {
		if got := givenUp(ended, err); got != err {
			t.Errorf("%v has become %v", err, got)
		}
	}
	if got := givenUp(t.Context(), canceled); got != canceled {
		t.Errorf("%v", got)
	}
}
