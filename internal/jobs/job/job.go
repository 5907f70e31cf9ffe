package job

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// The exit statuses of a program whose job was not started, as env(1) and timeout(1) have them.
const (
	StatusFailed        = 125
	StatusNotExecutable = 126
	StatusNotFound      = 127
)

// NotStartedError says that a job was not started.
type NotStartedError struct {
	Err error
	// Status is the exit status for it.
	Status int
}

func (e *NotStartedError) Error() string { return "start the job: " + e.Err.Error() }

func (e *NotStartedError) Unwrap() error { return e.Err }

// Job is a command that runs as our child.
type Job struct {
	// PID is what a dump of the job is given. The job leads a session and a process group
	// with this number.
	PID int
	cmd *exec.Cmd
}

// Command is what a job is started with.
type Command struct {
	Args []string            // the program and its arguments
	Env  []string            // nil is ours
	Dir  string              // the working directory; empty is ours
	User *syscall.Credential // nil is ours

	Stdin, Stdout, Stderr *os.File // nil is /dev/null
	// Terminal says that Stdin is a terminal, which becomes that of the job's session.
	Terminal bool
}

// Start starts a command under the seccomp filter of a job, in a session of its own. This
// program itself is under no filter: it could not trace processes that have one then.
//
// An error is a [NotStartedError].
func Start(c Command) (*Job, error) {
	path, err := exec.LookPath(c.Args[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return nil, notStarted(err)
	}
	job, err := start(path, c.Args, c)
	if errors.Is(err, unix.ENOEXEC) { // a script without a #! line is the shell's
		job, err = start("/bin/sh", append([]string{"/bin/sh", path}, c.Args[1:]...), c)
	}
	if err != nil {
		return nil, notStarted(err)
	}
	return job, nil
}

func start(path string, args []string, c Command) (*Job, error) {
	cmd := &exec.Cmd{
		Path: path, Args: args, Env: c.Env, Dir: c.Dir,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Credential: c.User, Setctty: c.Terminal}, // Ctty 0 is Stdin
	}
	// A nil *os.File in an interface is not nil.
	if c.Stdin != nil {
		cmd.Stdin = c.Stdin
	}
	if c.Stdout != nil {
		cmd.Stdout = c.Stdout
	}
	if c.Stderr != nil {
		cmd.Stderr = c.Stderr
	}
	err := onOwnThread(func() error {
		// A filter is that of one thread, and of the processes that it makes.
		if err := setFilter(jobFilter()); err != nil {
			return err
		}
		return cmd.Start()
	})
	if err != nil {
		return nil, err
	}
	return &Job{PID: cmd.Process.Pid, cmd: cmd}, nil
}

func notStarted(err error) error {
	status := StatusNotExecutable
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		status = StatusNotFound
	case errors.Is(err, errFilter), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM):
		status = StatusFailed
	}
	return &NotStartedError{Err: err, Status: status}
}

// onOwnThread calls f on an OS thread that then ends, and which is not the first one.
func onOwnThread(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() { // this one would not end
			result <- onOwnThread(f)
			runtime.UnlockOSThread()
			return
		}
		result <- f()
	}()
	return <-result
}

// Wait waits until the job has ended, and returns its exit status: 128+n if signal n has
// ended it.
func (j *Job) Wait() (int, error) {
	err := j.cmd.Wait()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		return 0, fmt.Errorf("wait for the job: %w", err)
	}
	status := j.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return status.ExitStatus(), nil
}
