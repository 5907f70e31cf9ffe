package jobs

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

// Start starts a command and its arguments under the seccomp filter of a job, in a session
// of its own and with our standard streams. This program itself is under no filter: it
// could not trace processes that have one then.
//
// An error is a [NotStartedError].
func Start(command []string) (*Job, error) {
	path, err := exec.LookPath(command[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return nil, notStarted(err)
	}
	job, err := start(path, command)
	if errors.Is(err, unix.ENOEXEC) { // a script without a #! line is the shell's
		job, err = start("/bin/sh", append([]string{"/bin/sh", path}, command[1:]...))
	}
	if err != nil {
		return nil, notStarted(err)
	}
	return job, nil
}

func start(path string, args []string) (*Job, error) {
	cmd := &exec.Cmd{
		Path: path, Args: args, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
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
