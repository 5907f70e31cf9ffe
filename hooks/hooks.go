package hooks

import (
	"context"
	"errors"
	"log/slog"

	"cucriu/hooks/config"
	"cucriu/internal/core/engine"
	"cucriu/internal/core/session"
	"cucriu/internal/core/stages"
	"cucriu/internal/core/watch"
)

// Hook is how a program works with criu's stages and with jobs: its configuration, its log, and the
// command that watches over a job.
type Hook = config.Hook

// Step is a step of a dump, a restore, a suspend or a resume.
type Step = config.Step

// The errors of a dump, a restore, a suspend or a resume.
var (
	// ErrNotBack is wrapped by an error that left the job in a state that is not good yet.
	ErrNotBack = session.ErrNotBack
	// ErrNoRoom says that an image was found not to fit when the job stood still.
	ErrNoRoom = engine.ErrNoRoom
	// ErrEnded is wrapped by an error after which processes of the job have ended.
	ErrEnded = session.ErrEnded
)

// New makes a hook with a configuration, which [config.Load] reads as the commands do.
// watcher is the command that watches over a job; without one it is cucriu-hook: see [session.FindWatcher].
func New(cfg config.Config, log *slog.Logger, watcher ...string) (*Hook, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if len(watcher) == 0 {
		var err error
		if watcher, err = session.FindWatcher(); err != nil {
			return nil, err
		}
	}
	return &Hook{Config: cfg, Log: log, Watcher: watcher}, nil
}

// Run does what criu asks its action script for, in an environment that getenv reads. If the error
// is a [LateError], criu would report a success all the same.
func Run(ctx context.Context, hook *Hook, getenv func(string) string) error {
	err := stages.Run(ctx, session.Of(hook), stages.StageFrom(getenv))
	if late, is := errors.AsType[*stages.LateError](err); is {
		err = &LateError{err, late}
	}
	return err
}

// Watch watches over a session in a directory, as the program that [config.Hook.Watcher] names: it waits until
// criu has ended, and then brings the job to a good end.
func Watch(hook *Hook, dir string) error {
	return watch.Run(session.Of(hook), dir, stages.ServeInside)
}

// LateError is the failure of a restore at a point where criu ignores failures.
type LateError struct {
	err  error
	late *stages.LateError
}

func (e *LateError) Error() string { return e.err.Error() }

func (e *LateError) Unwrap() error { return e.err }

// EndCriu kills criu, which has nothing left to do but to report a success. Whoever drives it sees that the restore has
// failed. What is to be in criu's log must be written before.
func (e *LateError) EndCriu() error { return e.late.EndCriu() }
