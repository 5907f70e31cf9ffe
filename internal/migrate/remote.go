package migrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/quote"
	"cucriu/internal/kit/version"
	"cucriu/internal/migrate/wire"
)

// remote is a program at the other host, and the connection with it.
type remote struct {
	*wire.Control
	cmd   *exec.Cmd
	ended chan struct{} // closed when ssh has ended
	err   error         // of ssh, once it has ended
	peer  hello
}

// firstAnswer is how long the destination may take to answer if there is no terminal at which ssh
// could be asking for a password.
const firstAnswer = 2 * time.Minute

// connect starts cucriu at the destination and exchanges greetings with it. Only ssh knows who
// that host is.
func connect(ctx context.Context, o *Options, id, fingerprint string) (*remote, error) {
	cmd := o.remoteCommand(o.receiveArgs()...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", o.RSH[0], err)
	}
	r := &remote{cmd: cmd, ended: make(chan struct{})}
	r.Control = wire.NewControl(out, in)
	go func() {
		<-r.Done()
		// What ssh still has to say is on its standard error.
		timer := time.AfterFunc(failpoint.Patience(5*time.Second), func() { _ = cmd.Process.Kill() })
		r.err = cmd.Wait()
		timer.Stop()
		close(r.ended)
	}()
	answered, cancel := boundAnswer(ctx)
	defer cancel()
	if err := r.greet(answered, id, fingerprint); err != nil {
		r.Close()
		<-r.ended
		if r.err != nil && !isLost(err) {
			err = fmt.Errorf("%w (%s: %w)", err, o.RSH[0], r.err)
		}
		if errors.Is(err, wire.ErrClosed) && cmd.ProcessState.Exited() {
			if cmd.ProcessState.ExitCode() == refused {
				return nil, fmt.Errorf("cucriu on %s refused, as it says above; if it must run as root there: --to root@%[1]s, or --remote-cucriu \"sudo cucriu\"", o.Host)
			}
			if cmd.ProcessState.ExitCode() == shellNotFound {
				return nil, fmt.Errorf("%s is not found on %s, in the PATH of a command that ssh runs: install it there, or specify where it is with --remote-cucriu /path/to/cucriu", strings.Fields(o.Remote)[0], o.Host)
			}
			status := cmd.ProcessState.ExitCode()
			try := strings.Join(slices.Concat(o.RSH, []string{o.Host}, strings.Fields(o.Remote)), " ")
			if status == wrongUsage {
				const text = "cucriu on %s cannot use the configuration of %[1]s or its arguments, as it says above; try: %s gpus"
				return nil, fmt.Errorf(text, o.Host, try)
			}
			return nil, fmt.Errorf("cannot start cucriu on %s (exit %d); try: %s --version", o.Host, status, try)
		}
		return nil, fmt.Errorf("cucriu on %s does not answer: %w", o.Host, err)
	}
	return r, nil
}

const (
	wrongUsage    = 2   // the exit status of a cucriu that cannot use its arguments or its configuration
	refused       = 3   // that of one that has touched nothing
	shellNotFound = 127 // that of a shell which does not find the program
)

// boundAnswer bounds how long the destination may take to answer, unless ssh may be asking for a
// password.
func boundAnswer(ctx context.Context) (context.Context, context.CancelFunc) {
	if terminal, err := os.Open("/dev/tty"); err == nil {
		terminal.Close()
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, failpoint.Patience(firstAnswer), fmt.Errorf("%w: it has not answered within %v", wire.ErrSilent, firstAnswer))
}

// remoteCommand is cucriu receive at the other host.
func (o *Options) remoteCommand(receiveArgs ...string) *exec.Cmd {
	args := slices.Concat(o.RSH[1:], []string{o.Host}, strings.Fields(o.Remote), []string{"receive"}, receiveArgs)
	cmd := exec.Command(o.RSH[0], args...)
	// Ctrl-C is for this program, which undoes what it has begun. It needs ssh for that.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.Stderr = os.Stderr
	return cmd
}

func (r *remote) greet(ctx context.Context, id, fingerprint string) error {
	ours := greeting(id, fingerprint)
	if err := r.Send(sayHello, ours); err != nil {
		return err
	}
	if err := r.expect(ctx, sayHello, &r.peer); err != nil {
		return err
	}
	return ours.requireSameProtocol(r.peer)
}

func greeting(id, fingerprint string) hello {
	name, _ := os.Hostname()
	return hello{Version: protocolVersion, Program: "cucriu " + version.Version, ID: id, Host: name, Fingerprint: fingerprint}
}

// Receive returns the next message. If the connection is lost, the error says how the remote shell
// has ended.
func (r *remote) Receive(ctx context.Context) (wire.Message, error) {
	m, err := r.Control.Receive(ctx)
	if err != nil && isLost(err) {
		err = r.lost(err)
	}
	return m, err
}

// lastWords returns why a connection that is over has ended: what the destination said of it, if it
// did.
func (r *remote) lastWords(ctx context.Context) error {
	for {
		m, err := r.Receive(ctx)
		if err != nil {
			return err
		}
		if m.Kind == sayFailed {
			return failureOf(m)
		}
	}
}

// dataPatience is how long to wait, once the control connection is lost, for what the receiver says
// over the data connections.
const dataPatience = time.Second

// whileConnected does something that is given up some time after the connection is lost.
func (r *remote) whileConnected(ctx context.Context, patience time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-r.Done():
			cause := r.lastWords(context.WithoutCancel(ctx))
			select {
			case <-time.After(patience):
				cancel(cause)
			case <-over:
			}
		case <-over:
		}
	}()
	err := givenUp(ctx, do(ctx))
	close(over)
	<-ended
	return err
}

// lost adds to an error why the remote shell has ended, if it has.
func (r *remote) lost(err error) error {
	select {
	case <-r.ended:
	case <-time.After(time.Second):
	}
	select {
	case <-r.ended:
		if r.err != nil {
			return fmt.Errorf("the connection to the destination is lost: %w (%s: %w)", err, filepath.Base(r.cmd.Path), r.err)
		}
	default:
	}
	return fmt.Errorf("the connection to the destination is lost: %w", err)
}

// expect waits for a message. What the other side reports meanwhile is passed over.
func (r *remote) expect(ctx context.Context, kind string, body any) error {
	for {
		m, err := r.Receive(ctx)
		if err != nil {
			return err
		}
		switch m.Kind {
		case kind:
			if body == nil {
				return nil
			}
			return m.Decode(body)
		case sayProgress:
		case sayFailed:
			return failureOf(m)
		default:
			return fmt.Errorf("the other host sent %.40q where %q was expected", m.Kind, kind)
		}
	}
}

// failureOf is what the other side says has failed there.
func failureOf(m wire.Message) error {
	var f failure
	if err := m.Decode(&f); err != nil {
		return err
	}
	return &thereError{text: quote.Foreign(f.Error), refused: f.Refused, asked: f.Asked}
}

// thereError is an error of the other host.
type thereError struct {
	text    string
	refused bool
	asked   string // what it was asked for
}

func (e *thereError) Error() string { return "at the destination: " + e.text }

// Refused implements what [preflight.Refused] looks for.
func (e *thereError) Refused() bool { return e.refused }
