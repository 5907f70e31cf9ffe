// Package watcher runs the watcher of a session, for the commands that start
// themselves again as one.
package watcher

import (
	"context"
	"log/slog"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"cucriu/hooks"
)

// Run watches over the session in a folder of the run directory. Its life is
// bounded by that of criu, or of the command that the session belongs to, and
// what it holds is a job that waits to be brought back, so it does not let
// itself be ended by the signals that end a service or a terminal session.
func Run(hook *hooks.Hook, dir string) error {
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTERM)
	err := hook.Watch(context.Background(), dir, readyOnce{os.Stdout})
	if err != nil {
		slog.Error("watcher", "error", err)
	}
	return err
}

// readyOnce closes the pipe to the hook after the one byte that it waits for.
type readyOnce struct{ pipe *os.File }

func (r readyOnce) Write(data []byte) (int, error) {
	n, err := r.pipe.Write(data)
	if closeErr := r.pipe.Close(); err == nil {
		err = closeErr
	}
	return n, err
}
