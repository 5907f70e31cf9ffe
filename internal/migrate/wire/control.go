package wire

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"cucriu/internal/failpoint"
)

// The errors of a control connection that is over.
var (
	// ErrClosed says that the other side, or what led to it, has ended the connection.
	ErrClosed = errors.New("the control connection was closed")
	// ErrSilent says that nothing has come from the other side for too long.
	ErrSilent = errors.New("the other host is silent")
)

// Keepalive says how a dead connection is noticed. The zero value means 5 s and 20 s.
type Keepalive struct {
	Every time.Duration // how often this side shows that it is there
	Dead  time.Duration // the other side is given up after so long without a sign
}

const (
	pingEvery  = 5 * time.Second
	silentDead = 20 * time.Second

	pingKind = "ping"
	// waiting is how many messages may lie there that nobody has received yet. Then nothing
	// more is read.
	waiting = 16
)

// Control sends and receives messages. All methods may be called by several goroutines.
type Control struct {
	every, dead time.Duration
	reader      *bufio.Reader
	writer      io.Writer
	closers     []io.Closer

	messages chan Message
	out      chan outgoing

	once sync.Once
	done chan struct{}
	err  error // why it is over, once done is closed
}

// outgoing is a frame to be written.
type outgoing struct {
	frame   []byte
	written chan error
}

// NewControl makes a control connection of what comes from the other side and what goes there.
func NewControl(r io.Reader, w io.Writer) *Control { return NewControlWith(r, w, Keepalive{}) }

// NewControlWith is NewControl with other times. Silence counts from the first message on: until
// then ssh may be asking the user for a password.
func NewControlWith(r io.Reader, w io.Writer, k Keepalive) *Control {
	c := &Control{
		every: k.Every, dead: k.Dead,
		reader: bufio.NewReaderSize(r, 64<<10), writer: w,
		messages: make(chan Message, waiting), out: make(chan outgoing),
		done: make(chan struct{}),
	}
	if c.every <= 0 {
		c.every = failpoint.Patience(pingEvery)
	}
	if c.dead <= 0 {
		c.dead = failpoint.Patience(silentDead)
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
	if kind == "" || kind == pingKind {
		return fmt.Errorf("control: %q is not a kind of message", kind)
	}
	frame, err := encodeMessage(kind, body)
	if err != nil {
		return err
	}
	o := outgoing{frame: frame, written: make(chan error, 1)}
	select {
	case c.out <- o:
	case <-c.done:
		return c.err
	}
	select {
	case err := <-o.written:
		return err
	case <-c.done:
		return c.err
	}
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
	silence := time.AfterFunc(c.dead, func() { c.end(fmt.Errorf("%w: nothing has come for %v", ErrSilent, c.dead)) })
	silence.Stop()
	for first := true; ; first = false {
		m, err := readMessage(c.reader, first)
		silence.Stop()
		if err != nil {
			c.end(err)
			return
		}
		if m.Kind != pingKind {
			select {
			case c.messages <- m:
			case <-c.done:
				return
			}
		}
		silence.Reset(c.dead)
	}
}

// write writes messages, and pings in between.
func (c *Control) write() {
	ping, err := encodeMessage(pingKind, nil)
	if err != nil {
		c.end(err)
		return
	}
	ticker := time.NewTicker(c.every)
	defer ticker.Stop()
	for {
		select {
		case o := <-c.out:
			_, err = c.writer.Write(o.frame)
			if err != nil {
				err = fmt.Errorf("%w: %w", ErrClosed, err)
			}
			o.written <- err
		case <-ticker.C:
			if _, err = c.writer.Write(ping); err != nil {
				err = fmt.Errorf("%w: %w", ErrClosed, err)
			}
		case <-c.done:
			return
		}
		if err != nil {
			c.endOfWriting(err)
			return
		}
	}
}

// endOfWriting leaves it to the reader to say what happened, if it does so soon: the other
// side's last words are still to be read after it has closed its input.
func (c *Control) endOfWriting(err error) {
	select {
	case <-time.After(c.every):
		c.end(err)
	case <-c.done:
	}
}

// Message is what came from the other side.
type Message struct {
	Kind string          `json:"kind"`
	Body json.RawMessage `json:"body,omitempty"`
}

// Decode reads the body into v. Fields that v does not have are ignored, because the other
// side may be of another version.
func (m Message) Decode(v any) error {
	if len(m.Body) == 0 {
		return fmt.Errorf("control: the message %.40q has no body", m.Kind)
	}
	if err := json.Unmarshal(m.Body, v); err != nil {
		return fmt.Errorf("control: the message %.40q: %w", m.Kind, err)
	}
	return nil
}
