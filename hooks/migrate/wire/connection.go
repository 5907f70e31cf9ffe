package wire

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"cucriu/internal/failpoint"
)

const (
	// windowBytes and windowPieces bound what a connection has sent and the receiver has not
	// acknowledged: what is sent again if it breaks.
	windowBytes  = 32 << 20
	windowPieces = 1024
)

// connection is one connection of a sender.
type connection struct {
	sender *Sender
	conn   net.Conn
	reader *bufio.Reader
	packer *packer
	ctx    context.Context // ends with the connection
	cancel context.CancelCauseFunc
	named  map[uint32]bool // files whose name was sent

	sent, resent, holes int64 // bytes

	room           chan struct{} // something was acknowledged
	mutex          sync.Mutex
	acked          uint64
	unacknowledged []piece // oldest first
	inFlight       int64   // bytes of the files in them
}

func newConnection(s *Sender, conn net.Conn, p *packer) *connection {
	c := &connection{
		sender: s, conn: conn, packer: p,
		reader: bufio.NewReaderSize(patientReader{conn}, 4<<10),
		named:  make(map[uint32]bool),
		room:   make(chan struct{}, 1),
	}
	c.ctx, c.cancel = context.WithCancelCause(s.ctx)
	context.AfterFunc(c.ctx, func() { conn.Close() })
	return c
}

func (c *connection) close() { c.cancel(nil) }

// welcome waits for the receiver's first word. Only then has it accepted this side, too.
func (c *connection) welcome() error {
	a, err := c.answer()
	switch {
	case err != nil:
		return err
	case a.kind != welcomeAnswer:
		return fmt.Errorf("%w: no welcome", errNonsense)
	case a.count != transferVersion:
		return fmt.Errorf("send: the receiver speaks version %d of the transfer, and this side %d", a.count, transferVersion)
	}
	return nil
}

// answer reads the next answer.
func (c *connection) answer() (answer, error) {
	a, err := readAnswer(c.reader)
	switch {
	case errors.Is(err, errNonsense):
		return a, err
	case err != nil:
		return a, fmt.Errorf("%w: %w", errBroken, err)
	case a.kind == failedAnswer:
		return a, &RemoteError{Reason: a.reason, NoSpace: a.noSpace}
	}
	return a, nil
}

// carry sends pieces until the connection ends, and returns why. Afterwards nothing more is
// acknowledged.
func (c *connection) carry() error {
	listened := make(chan error, 1)
	go func() {
		err := c.listen()
		listened <- err
		c.cancel(err)
	}()
	err := c.write()
	if c.ctx.Err() == nil && errors.Is(err, errBroken) {
		// The receiver may have said why it has hung up.
		defer time.AfterFunc(failpoint.Patience(lastWords), func() { c.cancel(err) }).Stop()
	} else {
		c.cancel(err)
	}
	heard := <-listened
	if !errors.Is(heard, errBroken) {
		return heard
	}
	return err
}

// listen takes acknowledgements.
func (c *connection) listen() error {
	for {
		a, err := c.answer()
		if err != nil {
			return err
		}
		c.mutex.Lock()
		n := a.count - c.acked
		if a.kind != ackAnswer || a.count < c.acked || n > uint64(len(c.unacknowledged)) {
			c.mutex.Unlock()
			return fmt.Errorf("%w: %d frames acknowledged", errNonsense, a.count)
		}
		c.acked = a.count
		there := c.unacknowledged[:n:n]
		c.unacknowledged = c.unacknowledged[n:]
		for _, p := range there {
			c.inFlight -= int64(p.size)
		}
		c.mutex.Unlock()
		if n == 0 {
			continue
		}
		c.sender.acknowledged(there)
		select {
		case c.room <- struct{}{}:
		default:
		}
	}
}

// write writes pieces, and a sign of life where there are none.
func (c *connection) write() error {
	ticker := time.NewTicker(failpoint.Patience(aliveEvery))
	defer ticker.Stop()
	alive := make([]byte, headerSize)
	(&frame{kind: aliveFrame}).put(alive, nil)
	for {
		if err := c.waitForRoom(); err != nil {
			return err
		}
		p, some, err := c.take(ticker.C)
		switch {
		case err != nil:
		case some:
			err = c.piece(p)
		default:
			err = c.send(alive)
		}
		if err != nil {
			return err
		}
	}
}

func (c *connection) waitForRoom() error {
	for {
		c.mutex.Lock()
		full := len(c.unacknowledged) >= windowPieces || c.inFlight+chunkSize > windowBytes
		c.mutex.Unlock()
		if !full {
			return nil
		}
		select {
		case <-c.room:
		case <-c.ctx.Done():
			return fmt.Errorf("%w: %w", errBroken, context.Cause(c.ctx))
		}
	}
}

// take takes the next piece. What another connection has lost goes first.
func (c *connection) take(alive <-chan time.Time) (p piece, some bool, err error) {
	select {
	case p = <-c.sender.again:
		return p, true, nil
	default:
	}
	select {
	case p = <-c.sender.again:
		return p, true, nil
	case p = <-c.sender.fresh:
		return p, true, nil
	case <-alive:
		return p, false, nil
	case <-c.ctx.Done():
		return p, false, fmt.Errorf("%w: %w", errBroken, context.Cause(c.ctx))
	}
}

// piece sends a piece.
func (c *connection) piece(p piece) error {
	c.mutex.Lock()
	c.unacknowledged = append(c.unacknowledged, p)
	c.inFlight += int64(p.size)
	c.mutex.Unlock()
	f := frame{kind: p.kind, offset: p.offset}
	if p.file != nil {
		f.file = p.file.number
		if err := c.name(p.file); err != nil {
			return err
		}
	}
	if p.kind != chunkFrame {
		f.size = p.size
		header := make([]byte, headerSize)
		f.put(header, nil)
		return c.send(header)
	}
	content := c.packer.chunk(p.size)
	if n, err := p.reader.ReadAt(content, p.offset); n < len(content) {
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("send: %s ends at %d, before the part that was to be sent", p.file.name, p.offset+int64(n))
		}
		return fmt.Errorf("send: %s: %w", p.file.name, err)
	}
	data := c.packer.pack(f.file, p.offset, p.size)
	c.mutex.Lock()
	c.unacknowledged[len(c.unacknowledged)-1].stored = uint32(len(data)) // it is the last one, and was not sent
	c.mutex.Unlock()
	switch {
	case p.resent:
		c.resent += int64(p.size)
	case len(data) == headerSize:
		c.holes += int64(p.size)
	}
	return c.send(data)
}

// name sends the name of a file, before the first frame about it.
func (c *connection) name(f *outFile) error {
	if c.named[f.number] {
		return nil
	}
	c.named[f.number] = true
	data := make([]byte, headerSize+len(f.name))
	copy(data[headerSize:], f.name)
	(&frame{kind: nameFrame, file: f.number, stored: uint32(len(f.name))}).put(data, []byte(f.name))
	return c.send(data)
}

// send writes to the connection, not faster than the limit. It needs no deadline: where nothing
// is written, nothing is acknowledged, and the reader gives the connection up.
func (c *connection) send(data []byte) error {
	for len(data) > 0 {
		part := data
		if limiter := c.sender.limiter; limiter != nil {
			part = data[:min(len(data), limiter.Burst())]
			pause(c.ctx, limiter.ReserveN(time.Now(), len(part)).Delay())
		}
		n, err := c.conn.Write(part)
		c.sent += int64(n)
		if err != nil {
			return fmt.Errorf("%w: %w", errBroken, err)
		}
		data = data[len(part):]
	}
	return nil
}
