package job

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/first"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/quote"
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

func (e *NotStartedError) Error() string { return "cannot start the job: " + e.Err.Error() }

func (e *NotStartedError) Unwrap() error { return e.Err }

// Job is a command that runs as our child.
type Job struct {
	// PID is what a dump of the job is given. The command leads a session and a process group, with this
	// number unless it has a first process of ours.
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
	// First is the path of the program that becomes the job's first process; empty if the command does.
	First string
}

// Start starts a command under the seccomp filter of a job, in a session of its own. This
// program itself is under no filter: it could not trace processes that have one then.
//
// An error is a [NotStartedError].
func Start(c Command) (*Job, error) {
	path, err := exec.LookPath(c.Args[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		if len(c.Args) == 1 && strings.ContainsAny(c.Args[0], " \t\n") {
			err = fault.Because(err, "the command is one word, and no program has that name: "+quote.Name(c.Args[0]),
				"leave out the quotes, or give it to a shell: sh -c '...'")
		}
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
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Credential: c.User, Setctty: c.Terminal && c.First == ""}, // Ctty 0 is Stdin
	}
	var by *first.Start
	if c.First != "" {
		var err error
		if by, err = first.Prepare(c.First, path, c.Terminal); err != nil {
			return nil, err
		}
		defer by.Close()
		cmd.Path, cmd.Args, cmd.ExtraFiles = by.Path, append(by.Args, args...), by.ExtraFiles
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
	var err error
	proc.OnOwnThread(func() {
		// A filter is that of one thread, and of the processes that it makes.
		if err = setFilter(jobFilter()); err == nil {
			err = cmd.Start()
		}
	})
	if err != nil {
		return nil, err
	}
	if by != nil {
		if err := by.Await(); err != nil {
			_ = cmd.Wait()
			return nil, &fs.PathError{Op: "execute", Path: path, Err: err}
		}
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

// x32 is the bit that marks a system call of the x32 ABI in its number.
const x32 = 0x40000000

// jobFilter is the seccomp filter of a job: io_uring_setup fails with ENOSYS, as on a kernel
// without io_uring, and every other call is allowed. criu cannot dump an io_uring, and
// libraries that can use one do without then.
//
// The call has the same number for every architecture whose programs an x86-64 or arm64
// kernel runs (x86-64, x32, i386; arm64, arm), so the filter need not look at it.
func jobFilter() []unix.SockFilter {
	const number = 0 // its offset in struct seccomp_data
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: number},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: ^uint32(x32)},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_IO_URING_SETUP, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
}

var errFilter = errors.New("seccomp filter")

// setFilter puts the calling thread permanently under a seccomp filter, and with it what the
// thread executes and starts. Without CAP_SYS_ADMIN the kernel demands that set-user-id
// programs gain nothing below it. They keep working with it: a job of root may run sudo.
func setFilter(program []unix.SockFilter) error {
	err := trySetFilter(program)
	if errors.Is(err, unix.EACCES) {
		if err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err == nil {
			err = trySetFilter(program)
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errFilter, err)
	}
	return nil
}

func trySetFilter(program []unix.SockFilter) error {
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&filter)))
	if errno != 0 {
		return errno
	}
	return nil
}
