package criuutil

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"cucriu/internal/kit/proc"
)

// Swrk is a "criu swrk" process: a criu that serves one request over a socket.
//
// Unlike go-criu's client, it tells which process criu is, passes on the pre-resume stage,
// answers criu when a stage fails (instead of hanging up), accepts answers of any length,
// and leaks no descriptor into other children.
type Swrk struct {
	Ident
	process *proc.Process
	cmd     *exec.Cmd
	conn    *net.UnixConn
}

// FirstInherited is the first descriptor that [StartSwrk] passes to criu.
const FirstInherited = 4

// StartSwrk starts the criu at path with the environment env. criu writes both its output
// streams to output: a file, because a pipe that nobody reads any more would kill criu in the
// middle of its work.
//
// criu also gets the files in inherited, from descriptor [FirstInherited] on, for a restore
// to give to the job.
//
// criu runs in a process group of its own, so that a signal from the terminal to the
// foreground group does not end criu in the middle of its work.
func StartSwrk(path string, env []string, output *os.File, inherited ...*os.File) (*Swrk, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket for criu: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "swrk"), os.NewFile(uintptr(fds[1]), "swrk")
	defer ours.Close()
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, fmt.Errorf("socket for criu: %w", err)
	}
	// A restore needs as many descriptors as criu may have, which raises its limit only with CAP_SYS_RESOURCE; and
	// images and restored memory are files, of whatever size. The job gets the limits that it had.
	for _, resource := range []int{unix.RLIMIT_NOFILE, unix.RLIMIT_FSIZE} {
		if _, err := proc.RaiseLimit(resource); err != nil {
			conn.Close()
			return nil, err
		}
	}
	cmd := exec.Command(path, "swrk", "3")
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, output, output
	cmd.ExtraFiles = append([]*os.File{theirs}, inherited...)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("start criu: %w", err)
	}
	process, err := proc.Open(cmd.Process.Pid)
	if err != nil {
		for _, end := range []io.Closer{conn, ours, theirs} { // criu ends when nobody can ask it any more
			end.Close()
		}
		ended := cmd.Wait()
		if errors.Is(err, proc.ErrGone) {
			err = ErrNoAnswer
			if ended != nil {
				return nil, fmt.Errorf("%w (%w)", err, ended)
			}
		}
		return nil, errors.Join(err, ended)
	}
	return &Swrk{Ident(process.Ident), process, cmd, conn.(*net.UnixConn)}, nil
}

// Notify is called at each stage that criu announces. pid is the root task as criu's caller
// sees it, or 0 if criu does not name it. An error makes criu's stage fail. criu decides
// which failures it heeds and which it ignores.
type Notify func(ctx context.Context, stage string, pid int) error

// Do makes a request and serves criu's notifications until criu has answered. It returns
// the error of the first stage that failed, else the error that criu reports.
//
// When ctx ends, only notify learns of it. Do does not kill criu: a criu that is killed
// while it works in a process may take the process with it. It works in none before its first
// notification, so a criu that hangs before it is killed.
func (s *Swrk) Do(ctx context.Context, kind rpc.CriuReqType, opts *rpc.CriuOpts, notify Notify) (*rpc.CriuResp, error) {
	opts.NotifyScripts = proto.Bool(true)
	request := &rpc.CriuReq{Type: kind.Enum(), Opts: opts}
	harmless := context.AfterFunc(ctx, func() { // with all that a wrapper of criu has started
		_ = unix.Kill(-s.PID, unix.SIGKILL)
		_ = s.conn.SetDeadline(time.Now())
	})
	defer harmless()
	var failed error
	for begun := false; ; begun = true {
		response, err := s.exchange(request)
		if !begun && !harmless() { // it is being killed
			return nil, context.Cause(ctx)
		}
		if err != nil {
			return nil, errors.Join(failed, err)
		}
		if response.GetType() != rpc.CriuReqType_NOTIFY {
			if failed == nil && !response.GetSuccess() {
				failed = &CriuError{Message: response.GetCrErrmsg(), Errno: unix.Errno(response.GetCrErrno())}
			}
			return response, failed
		}
		event := response.GetNotify()
		err = notify(ctx, event.GetScript(), int(event.GetPid()))
		if err != nil && failed == nil {
			failed = err
		}
		request = &rpc.CriuReq{Type: rpc.CriuReqType_NOTIFY.Enum(), NotifySuccess: proto.Bool(err == nil)}
	}
}

// SetOptions adds the options with which a client drives criu over RPC. With them the
// options of this criu are fully known.
func (c *Criu) SetOptions(opts *rpc.CriuOpts) error {
	c.RPC = false
	if opts.GetLeaveRunning() {
		c.option("leave-running", "")
	}
	if opts.GetLeaveStopped() {
		c.option("leave-stopped", "")
	}
	if file := opts.GetConfigFile(); file != "" {
		before := c.LibDir
		if err := c.readConfigurationFile(file); err != nil {
			return err
		}
		c.LibDirGiven = c.LibDirGiven || c.LibDir != before
	}
	c.FreezeCgroup = c.FreezeCgroup || opts.GetFreezeCgroup() != ""
	c.AutoDedup = c.AutoDedup || opts.GetAutoDedup()
	c.LazyPages = c.LazyPages || opts.GetLazyPages()
	c.PagesElsewhere = c.PagesElsewhere || opts.Ps != nil || opts.GetParentImg() != "" || opts.GetLazyPages()
	return c.checkScripts()
}

// FindSwrk finds, among the children of a process, the criu swrk that works in an image
// directory.
func FindSwrk(parent int, imageDir string) (int, error) {
	children, err := proc.Children(parent)
	if err != nil {
		return 0, err
	}
	for _, pid := range children {
		args, err := arguments(pid)
		if err != nil {
			continue
		}
		var criu Criu
		if criu.readArguments(args); !criu.RPC {
			continue
		}
		open, err := proc.Descriptors(pid)
		if err == nil && slices.Contains(slices.Collect(maps.Values(open)), imageDir) {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("process %d has no child that is criu swrk and works in %s", parent, imageDir)
}

// ErrNoAnswer says that criu hung up instead of answering. [Swrk.Close] tells how criu
// ended.
var ErrNoAnswer = errors.New("criu exited without answering")

// maxResponse, in bytes, is far more than criu ever answers: a few error lines at most.
const maxResponse = 1 << 20

func (s *Swrk) exchange(request *rpc.CriuReq) (*rpc.CriuResp, error) {
	data, err := proto.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("request to criu: %w", err)
	}
	if _, err := s.conn.Write(data); errors.Is(err, unix.EPIPE) {
		return nil, ErrNoAnswer // it has ended before it was asked
	} else if err != nil {
		return nil, fmt.Errorf("request to criu: %w", err)
	}
	buffer := make([]byte, maxResponse)
	n, _, flags, _, err := s.conn.ReadMsgUnix(buffer, nil)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET): // EOF if criu had read the request, else ECONNRESET
		return nil, ErrNoAnswer
	case err != nil:
		return nil, fmt.Errorf("criu's response: %w", err)
	case flags&unix.MSG_TRUNC != 0:
		return nil, fmt.Errorf("criu's response: longer than %d bytes", maxResponse)
	}
	response := new(rpc.CriuResp)
	if err := proto.Unmarshal(buffer[:n], response); err != nil {
		return nil, fmt.Errorf("criu's response: %w", err)
	}
	return response, nil
}

// Close closes the socket, which ends criu once it has finished its request, and waits for
// criu to end.
func (s *Swrk) Close() error {
	s.conn.Close()
	err := s.cmd.Wait()
	s.process.Close()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return nil // its exit status only repeats its answer
	}
	if err != nil {
		return fmt.Errorf("criu: %w", err)
	}
	return nil
}

// CriuError is the reason for a failure that criu itself gives: the first error that it
// logged, which is not always the cause. [ReadFailure] finds that.
type CriuError struct {
	Message string
	Errno   unix.Errno
}

func (e *CriuError) Error() string {
	switch {
	case e.Message != "":
		return "criu failed: " + e.Message
	case e.Errno != 0:
		return "criu failed: " + e.Errno.Error()
	}
	return "criu failed"
}
