// Package watcher runs the process that watches over a session. It is a program started as
// "PROGRAM watch DIR".
package watcher

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"cucriu/hooks"
)

// Run watches over the session in dir and returns when it has come to a good end.
//
// The watcher ignores the signals that end a service or a terminal session, because it
// holds a job that waits to be brought back. Its life is bounded by that of criu, or of the
// command to which the session belongs.
func Run(hook *hooks.Hook, dir string) error {
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTERM)
	err := hooks.Watch(context.Background(), hook, dir, readyOnce{os.Stdout}, hooks.ServeInside)
	if err != nil {
		hook.Log.Error("watcher", "error", err)
	}
	return err
}

// readyOnce closes the pipe to the hook after the one byte for which the hook waits.
type readyOnce struct{ pipe *os.File }

func (r readyOnce) Write(data []byte) (int, error) {
	n, err := r.pipe.Write(data)
	if closeErr := r.pipe.Close(); err == nil {
		err = closeErr
	}
	return n, err
}
