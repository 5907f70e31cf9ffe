package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
)

// TestExitCode: what became of the job counts before the cause, and before the signal that
// ended the command.
func TestExitCode(t *testing.T) {
	given, giveUp := context.WithCancelCause(t.Context())
	giveUp(&signalError{unix.SIGTERM})
	refused := preflight.AsRefusal(errors.New("no such process"))
	notBack, ended := fmt.Errorf("dump: %w", hooks.ErrNotBack), fmt.Errorf("dump: %w", hooks.ErrEnded)
	killed := exec.Command("/bin/sh", "-c", "exit 77").Run()
	for _, test := range []struct {
		name string
		ctx  context.Context
		err  error
		want int
	}{
		{"success", t.Context(), nil, 0},
		{"success in spite of a signal", given, nil, 0},
		{"failure", t.Context(), errors.New("disk full"), 1},
		{"failure of a program that was run", t.Context(), fmt.Errorf("criu: %w", killed), 1},
		{"wrong usage", t.Context(), fmt.Errorf("lock: %w", usageError{refused}), 2},
		{"wrong usage, on a signal", given, usageError{refused}, 2},
		{"refused", t.Context(), fmt.Errorf("lock: %w", refused), 3},
		{"refused, on a signal", given, refused, 143},
		{"not back", t.Context(), notBack, 4},
		{"not back, after a refusal", t.Context(), errors.Join(refused, notBack), 4},
		{"not back, on a signal", given, notBack, 4},
		{"ended", t.Context(), errors.Join(refused, ended), 5},
		{"ended and not back", t.Context(), errors.Join(ended, notBack), 4},
		{"given up on a signal", given, errors.New("interrupted"), 143},
		{"the job's own", t.Context(), exitStatus(42), 42},
		{"the job's own, with a signal passed on", given, exitStatus(42), 42},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := exitCode(test.ctx, test.err); got != test.want {
				t.Errorf("exit status %d for %v, want %d", got, test.err, test.want)
			}
		})
	}
}
