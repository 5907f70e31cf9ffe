package wire

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"cucriu/internal/failpoint"
)

const (
	// aliveEvery is how often each side of a connection shows that it is there.
	aliveEvery = 5 * time.Second
	// aliveDead is how long a connection may be silent.
	aliveDead = 20 * time.Second
	// lastWords is how long a receiver that has failed waits for the sender to hang up, so
	// that the reason gets there.
	lastWords = 5 * time.Second
)

// Serve receives over one connection, until the transfer is over or the connection ends. A
// connection that breaks does no harm to the transfer: the sender makes another. Serve closes
// the connection.
func (r *Receiver) Serve(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	if err := r.enter(); err != nil {
		return err
	}
	defer r.leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &served{receiver: r, conn: conn, taken: make(chan struct{}, 1)}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		s.answer(ctx)
	}()
	err := s.take()
	if !errors.Is(err, errBroken) {
		r.end(fmt.Errorf("receive: %w", err))
	}
	over, failure := r.state()
	if failure != nil {
		s.drain()
	}
	given := context.Cause(ctx)
	cancel()
	<-answered
	switch {
	case over:
		return failure
	case given != nil:
		return given
	}
	return err
}

// errBroken is about a connection, not about what came over it.
var errBroken = errors.New("the data connection broke")

// served is one connection of a receiver.
type served struct {
	receiver *Receiver
	conn     net.Conn
	count    atomic.Uint64 // frames that were taken
	taken    chan struct{} // there are more
	unpacker unpacker
}

// patientReader reads from a connection that must not be silent.
type patientReader struct{ conn net.Conn }

func (p patientReader) Read(data []byte) (int, error) {
	if err := p.conn.SetReadDeadline(time.Now().Add(failpoint.Patience(aliveDead))); err != nil {
		return 0, err
	}
	return p.conn.Read(data)
}

// take takes frames until the connection ends or the transfer has failed.
func (s *served) take() error {
	defer s.unpacker.close()
	reader := bufio.NewReaderSize(patientReader{s.conn}, 32<<10)
	header := make([]byte, headerSize)
	buffer := make([]byte, chunkSize)
	for {
		if _, err := io.ReadFull(reader, header); err != nil {
			return fmt.Errorf("%w: %w", errBroken, err)
		}
		f, err := parseFrame(header)
		if err != nil {
			return err
		}
		followed := buffer[:f.stored]
		if _, err := io.ReadFull(reader, followed); err != nil {
			return fmt.Errorf("%w: %w", errBroken, err)
		}
		if s.receiver.begin() {
			err = s.handle(&f, header, followed)
			s.receiver.done()
		} else { // what comes after the end was there before
			_, err = s.receiver.state()
		}
		if err != nil {
			return err
		}
		if f.kind == nameFrame || f.kind == aliveFrame {
			continue
		}
		s.count.Add(1)
		select {
		case s.taken <- struct{}{}:
		default:
		}
	}
}

func (s *served) handle(f *frame, header, followed []byte) error {
	if f.kind == chunkFrame {
		content, err := s.unpacker.unpack(f, header, followed)
		if err != nil {
			return err
		}
		return s.receiver.chunk(f, content)
	}
	if err := verify(f, header, followed); err != nil {
		return err
	}
	switch f.kind {
	case nameFrame:
		return s.receiver.name(f.file, string(followed))
	case closedFrame:
		return s.receiver.closed(f)
	case finishFrame:
		return s.receiver.finish(f)
	}
	return nil
}

// answer acknowledges what was taken. It ends with ctx, and when it has told the sender that the
// transfer has failed. Otherwise it makes the connection end.
func (s *served) answer(ctx context.Context) {
	err := s.send(answer{kind: welcomeAnswer, count: transferVersion})
	ticker := time.NewTicker(failpoint.Patience(aliveEvery))
	defer ticker.Stop()
	over := s.receiver.over
	var hangUp <-chan time.Time
	for err == nil {
		select {
		case <-s.taken:
		case <-ticker.C:
		case <-over:
			if failure := s.receiver.failure; failure != nil {
				err = s.send(answer{kind: failedAnswer, noSpace: isNoSpace(failure), reason: failure.Error()})
				if err == nil {
					return
				}
				continue
			}
			over, hangUp = nil, time.After(failpoint.Patience(aliveDead)) // the sender hangs up when it has seen the last acknowledgement
		case <-hangUp:
			err = errBroken
			continue
		case <-ctx.Done():
			err = ctx.Err()
			continue
		}
		err = s.send(answer{kind: ackAnswer, count: s.count.Load()})
	}
	s.conn.Close()
}

func (s *served) send(a answer) error {
	if err := s.conn.SetWriteDeadline(time.Now().Add(failpoint.Patience(aliveDead))); err != nil {
		return err
	}
	_, err := s.conn.Write(a.encode())
	return err
}

// drain waits for the sender to hang up: if data were left unread, the kernel would reset the
// connection, and what the sender was told would be lost.
func (s *served) drain() {
	if s.conn.SetReadDeadline(time.Now().Add(failpoint.Patience(lastWords))) == nil {
		_, _ = io.Copy(io.Discard, s.conn)
	}
}
