package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
)

// TestExitStatusesAreDocumented: the constants, the help topic and the page name the same ones.
func TestExitStatusesAreDocumented(t *testing.T) {
	found := func(of, pattern string) (all []string) {
		for _, m := range regexp.MustCompile("(?m)"+pattern).FindAllStringSubmatch(of, -1) {
			all = append(all, strings.ReplaceAll(m[1], " ", ""))
		}
		return all
	}
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	want := append([]string{"0"}, found(read("exit.go"), `^\texit[A-Z]\w+ += (\d+)`)...)
	want[len(want)-1] += "+n"
	if got := found(exitStatusTopic().Long, `^  (\d+(?:\+n)?) `); !slices.Equal(got, want) {
		t.Errorf("the help topic has %q, want %q", got, want)
	}
	if got := found(read("../../docs/exit-status.md"), `^\| (\d+(?: \+ n)?) \|`); !slices.Equal(got, want) {
		t.Errorf("docs/exit-status.md has %q, want %q", got, want)
	}
}

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
