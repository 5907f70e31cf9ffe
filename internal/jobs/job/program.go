package job

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/quote"
)

// Program is a program of the user's that runs in the sandbox of a job, when the job is started or resumed. It is no
// part of the job.
type Program struct {
	Option string              `json:"option"` // by which it was given
	Args   []string            `json:"args"`
	Env    []string            `json:"env"`
	User   *syscall.Credential `json:"user,omitempty"` // nil is root's
}

const (
	programPatience = time.Minute
	mostOutput      = 4 << 10 // bytes that people are shown
)

// StatusNotReady is the exit status if a program that is to run before the job has failed: the job was not started.
const StatusNotReady = 3

// Run runs the program, and returns what is to be said of its output. All that it has left is ended, but for what has
// left its process group.
func (p *Program) Run(ctx context.Context) (note string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, failpoint.Patience(programPatience),
		fmt.Errorf("it has not ended within %v", programPatience))
	defer cancel()
	cmd := exec.CommandContext(ctx, p.Args[0], p.Args[1:]...)
	var output firstBytes
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = p.Env, "/", &output, &output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: p.User}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second // for those that have its output open
	if err = cmd.Run(); errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	if cmd.Process != nil {
		_ = cmd.Cancel()
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if note = strings.TrimSpace(string(output)); note != "" {
		note = ": " + note
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w%s", p.Option, quote.Name(strings.Join(p.Args, " ")), err, note)
	}
	if note != "" {
		note = p.Option + note
	}
	return note, nil
}

// firstBytes keeps the beginning of what is written to it.
type firstBytes []byte

func (b *firstBytes) Write(data []byte) (int, error) {
	*b = append(*b, data[:min(len(data), mostOutput-len(*b))]...)
	return len(data), nil
}
