package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/jsonlines"
)

// The errors of a control connection that is over.
var (
	// ErrClosed says that the other side, or what led to it, has ended the connection.
	ErrClosed = errors.New("the control connection was closed")
	// ErrSilent says that nothing has come from the other side for too long.
	ErrSilent = errors.New("the other host is silent")
)

const (
	// pingEvery is how often each side shows that it is there, silentDead how long the other side may
	// be silent.
	pingEvery  = 5 * time.Second
	silentDead = 20 * time.Second

	pingKind = "ping"
	// waiting is how many messages may lie there that nobody has received yet. Then nothing
	// more is read.
	waiting = 16
	// maxMessage is the size of the largest message, in bytes.
	maxMessage = 4 << 20
)

// Message is what came from the other side.
type Message struct {
	Kind string          `json:"kind"`
	Body json.RawMessage `json:"body,omitempty"`
}

// Decode reads the body into v.
func (m Message) Decode(v any) error {
	if err := json.Unmarshal(m.Body, v); err != nil {
		return fmt.Errorf("control: the message %.40q: %w", m.Kind, err)
	}
	return nil
}

// encode returns a message as a line. A nil body is none.
func encode(kind string, body any) ([]byte, error) {
	m := struct {
		Kind string `json:"kind"`
		Body any    `json:"body,omitempty"`
	}{kind, body}
	line, err := jsonlines.Encode(m)
	if err == nil && len(line) > maxMessage {
		err = fmt.Errorf("it has %d bytes, but %d are allowed", len(line), maxMessage)
	}
	if err != nil {
		return nil, fmt.Errorf("control: the message %.40q: %w", kind, err)
	}
	return line, nil
}

// Control sends and receives messages. All methods may be called by several goroutines.
type Control struct {
	lines   *jsonlines.Reader
	writer  io.Writer
	closers []io.Closer

	messages chan Message
	out      chan outgoing

	once sync.Once
	done chan struct{}
	err  error // why it is over, once done is closed
}

// outgoing is a line to be written.
type outgoing struct {
	line    []byte
	written chan error
}

// NewControl makes a control connection of what comes from the other side and what goes there.
// Silence counts from the first message on: until then ssh may be asking the user for a password.
func NewControl(r io.Reader, w io.Writer) *Control {
	c := &Control{
		lines: jsonlines.NewReader(r, maxMessage), writer: w,
		messages: make(chan Message, waiting), out: make(chan outgoing),
		done: make(chan struct{}),
	}
	for _, end := range []any{w, r} {
		if closer, ok := end.(io.Closer); ok {
			c.closers = append(c.closers, closer)
		}
	}
	go c.read()
	go c.write()
	return c
}

// Send sends a message. A nil body is none. Send waits until the message is written, but not for
// a connection that is over.
func (c *Control) Send(kind string, body any) error {
	line, err := encode(kind, body)
	if err != nil {
		return err
	}
	o := outgoing{line, make(chan error, 1)}
	select {
	case c.out <- o:
	case <-c.done:
		return c.err
	}
	select {
	case err = <-o.written:
	case <-c.done:
		select {
		case err = <-o.written: // and then the other side has answered, and ended
		default:
			return c.err
		}
	}
	if err != nil {
		select {
		case <-c.done: // who ended the connection knows why, the writer may only see that it is closed
			return c.err
		default:
		}
	}
	return err
}

// Receive returns the next message. Messages that came before the connection ended are
// returned before its error.
func (c *Control) Receive(ctx context.Context) (Message, error) {
	select {
	case m := <-c.messages:
		return m, nil
	default:
	}
	select {
	case m := <-c.messages:
		return m, nil
	case <-ctx.Done():
		return Message{}, context.Cause(ctx)
	case <-c.done:
	}
	select {
	case m := <-c.messages:
		return m, nil
	default:
		return Message{}, c.err
	}
}

// Done is closed when the connection is over.
func (c *Control) Done() <-chan struct{} { return c.done }

// Close ends the connection, and closes what it was made of.
func (c *Control) Close() error {
	c.end(ErrClosed)
	return nil
}

// end ends the connection, for the first reason only. A blocked read of standard input cannot
// be interrupted, so nobody waits for the goroutines.
func (c *Control) end(err error) {
	c.once.Do(func() {
		c.err = err
		close(c.done)
		for _, closer := range c.closers {
			closer.Close()
		}
	})
}

// read hands out messages until the stream ends.
func (c *Control) read() {
	dead := failpoint.Patience(silentDead)
	silence := time.AfterFunc(dead, func() { c.end(fmt.Errorf("%w: nothing received for %v", ErrSilent, dead)) })
	silence.Stop()
	for first := true; ; first = false {
		var m Message
		err := c.lines.Read(&m)
		silence.Stop()
		if err != nil {
			c.end(readError(err, first))
			return
		}
		if m.Kind != pingKind {
			select {
			case c.messages <- m:
			case <-c.done:
				return
			}
		}
		silence.Reset(dead)
	}
}

// readError says what came instead of a message. first says that there was none before.
func readError(err error, first bool) error {
	var invalid *jsonlines.InvalidError
	switch {
	case errors.Is(err, io.EOF):
		return ErrClosed
	case !errors.As(err, &invalid):
		return fmt.Errorf("%w: %w", ErrClosed, err)
	case invalid.Foreign && first:
		return fmt.Errorf("control: expected cucriu, but received %+q from the other host: a remote shell must print nothing for non-interactive commands; "+
			"check its ~/.bashrc and /etc/profile.d until `ssh HOST true` prints nothing, and that the remote command is cucriu, of the same version", invalid.Found)
	case invalid.Foreign:
		return fmt.Errorf("control: unexpected data between messages, %+q: the connection is damaged, or something else writes to it", invalid.Found)
	}
	return fmt.Errorf("control: %w", err)
}

// write writes messages, and pings in between.
func (c *Control) write() {
	ping, _ := encode(pingKind, nil)
	every := failpoint.Patience(pingEvery)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		o := outgoing{ping, make(chan error, 1)}
		select {
		case o = <-c.out:
		case <-ticker.C:
		case <-c.done:
			return
		}
		_, err := c.writer.Write(o.line)
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrClosed, err)
		}
		o.written <- err
		if err != nil {
			// The reader says what happened, if it does so soon: the other side's last words are still
			// to be read after it has closed its input.
			select {
			case <-time.After(every):
				c.end(err)
			case <-c.done:
			}
			return
		}
	}
}
