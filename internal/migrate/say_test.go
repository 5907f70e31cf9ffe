package migrate

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs"
	"cucriu/internal/migrate/prepare"
	"cucriu/internal/migrate/wire"
)

// connected returns the two ends of a control connection.
func connected(t *testing.T) (here *remote, there *wire.Control) {
	t.Helper()
	in, theirOut := io.Pipe()
	theirIn, out := io.Pipe()
	ended := make(chan struct{})
	close(ended)
	here = &remote{Control: wire.NewControl(in, out), ended: ended}
	there = wire.NewControl(theirIn, theirOut)
	t.Cleanup(func() {
		here.Close()
		there.Close()
	})
	return here, there
}

// TestAFailureToDoWhatWasDecided ends the wait for an answer, unless the destination tries again to let the job run.
func TestAFailureToDoWhatWasDecided(t *testing.T) {
	hook := &hooks.Hook{Log: slog.New(slog.DiscardHandler)}
	process := func() *sourceSession { return &newTreeSource(hook, 1, Options{}).sourceSession }
	job := func() *sourceSession {
		return &newJobSource(hook, jobs.NewLeaving(hook, jobs.Local{Dir: "/d"}), Options{}).sourceSession
	}
	for name, test := range map[string]struct {
		of       func() *sourceSession
		kind     string // empty for the decision itself
		decision string
		asked    string // what the destination has failed to do
		final    bool
	}{
		"commit":                               {process, "", sayCommit, sayCommit, false},
		"abort":                                {process, "", sayAbort, sayAbort, true},
		"commit over a new connection":         {process, saySettle, sayCommit, saySettle, false},
		"something earlier":                    {process, "", sayAbort, sayRestore, false},
		"commit of a job":                      {job, "", sayCommit, sayCommit, false},
		"abort of a job":                       {job, "", sayAbort, sayAbort, true},
		"commit of a job, new connection":      {job, saySettle, sayCommit, saySettle, false},
		"abort of a job, over a new one":       {job, saySettle, sayAbort, saySettle, true},
		"something earlier than a job's abort": {job, "", sayAbort, sayTake, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := test.of()
			var there *wire.Control
			d.remote, there = connected(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			kind := test.kind
			if kind == "" {
				kind = test.decision
			}
			go func() {
				if m, err := there.Receive(ctx); err == nil && m.Kind == kind {
					_ = there.Send(sayFailed, failure{Error: "the disk is full", Asked: test.asked})
					_ = there.Send(sayRunning, running{PID: 7})
				}
			}()
			answer, err := d.ask(ctx, test.decision, kind, nil)
			switch {
			case test.final && (err == nil || !strings.Contains(err.Error(), "the disk is full")):
				t.Errorf("got %v, error %v: want the failure", answer.Kind, err)
			case !test.final && (err != nil || answer.Kind != sayRunning || d.result.PID != 7):
				t.Errorf("got %v, error %v: want what came later", answer.Kind, err)
			}
		})
	}
}

// TestADestinationThatCannotDoWhatWasDecided hangs up: the source waits for an answer.
func TestADestinationThatCannotDoWhatWasDecided(t *testing.T) {
	in, out := io.Pipe()
	back, theirs := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- Receive(t.Context(), &hooks.Hook{Log: slog.New(slog.DiscardHandler)}, in, theirs, ReceiveOptions{})
	}()
	c := wire.NewControl(back, out)
	defer c.Close()
	r := &remote{Control: c, ended: make(chan struct{})}
	if err := r.greet(t.Context(), newID(), "none"); err != nil {
		t.Fatal(err)
	}
	if err := c.Send(saySettle, settleMessage{Dir: t.TempDir(), Decision: "perhaps"}); err != nil && !errors.Is(err, wire.ErrClosed) { // it ends when it has answered
		t.Fatal(err)
	}
	if m, err := c.Receive(t.Context()); err != nil || m.Kind != sayFailed {
		t.Errorf("it says %q, error %v", m.Kind, err)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("it waits for more")
	}
}

// TestAnotherProtocolIsRefused by both sides, whatever else is said.
func TestAnotherProtocolIsRefused(t *testing.T) {
	ours := greeting(newID(), "none")
	if err := ours.requireSameProtocol(ours); err != nil {
		t.Error(err)
	}
	theirs := hello{Version: ours.Version + 1, Program: "them\x1b[0m" + strings.Repeat("m", 1000)}
	err := ours.requireSameProtocol(theirs)
	if err == nil || !strings.Contains(err.Error(), "install the same cucriu on both hosts") || len(err.Error()) > 300 || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("%v", err)
	}
}

// TestWarningsOfTheDestinationAreSaid of a long job, too: once, although each round looks again.
func TestWarningsOfTheDestinationAreSaid(t *testing.T) {
	var log bytes.Buffer
	hook := &hooks.Hook{Log: slog.New(slog.NewTextHandler(&log, nil))}
	s := newJobSource(hook, jobs.NewLeaving(hook, jobs.Local{Dir: "/d"}), Options{Host: "gpu-b"})
	remote, there := connected(t)
	s.remote = remote
	first := preflight.Warning(preflight.FindingDriver, "is old", "update it")
	second := preflight.Warning(preflight.FindingFileDiffers, "the log differs", "copy it")
	for _, findings := range []preflight.Findings{nil, {first}, {first, second}} {
		go func() { _ = there.Send(sayTaken, &prepare.Judgement{Findings: findings}) }()
		if err := s.awaitTaken(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{"at gpu-b: ", "is old", "the log differs"} {
		if !strings.Contains(log.String(), text) {
			t.Errorf("%q is not said: %s", text, log.String())
		}
	}
	if n := strings.Count(log.String(), "is old"); n != 1 {
		t.Errorf("said %d times: %s", n, log.String())
	}
}
