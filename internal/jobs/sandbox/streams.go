package sandbox

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/job"
)

// streams are the standard streams of the job, as far as init has a part in them.
type streams struct {
	console *console // nil if the job has no terminal
}

func openStreams(dir string, spec Spec) (s streams, err error) {
	if spec.Terminal != nil {
		size := unix.Winsize{Row: spec.Terminal.Rows, Col: spec.Terminal.Columns}
		s.console, err = newConsole(dir, size, spec.Terminal.Output, spec.Terminal.User)
	}
	return s, err
}

// serve does init's part.
func (s streams) serve() {
	if s.console != nil {
		go s.console.run()
	}
}

// drain returns when all is in the job's output that the job has written.
func (s streams) drain() {
	if s.console != nil {
		s.console.drain()
	}
}

// give opens the streams of a job that is to be started, and returns what closes them here.
func (s streams) give(c *job.Command, start *Start) (release func(), err error) {
	if s.console != nil {
		c.Stdin, c.Stdout, c.Stderr, c.Terminal = s.console.slave, s.console.slave, s.console.slave, true
		return func() {}, nil
	}
	output, err := os.OpenFile(start.Output, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("output of the job: %w", err)
	}
	c.Stdout, c.Stderr = output, output
	return func() { output.Close() }, nil
}
