package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"cucriu/internal/kit/failpoint"
)

const (
	// sliceSize is how much is written at once.
	sliceSize = 256 << 10
	// stalled is how long a request may make no progress before its connection is given up.
	stalled = 30 * time.Second
	// maxReason is the longest reason of a receiver for a failure, in bytes.
	maxReason = 1024
)

// request makes a request, and waits until its body is not used any more.
func (c *stream) request(ctx context.Context, method, ranges string, b *body) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(failpoint.Patience(stalled), func() { cancel(errors.New("it has made no progress")) })
	defer watch.Stop()
	q, err := http.NewRequestWithContext(ctx, method, "https://receiver/", nil)
	if err != nil {
		return err
	}
	if ranges != "" {
		q.Header.Set(rangesHeader, ranges)
	}
	if b != nil {
		b.ctx, b.progress = ctx, func() { watch.Reset(failpoint.Patience(stalled)) }
		q.Body, q.ContentLength = b, -1
	}
	answer, err := c.http.RoundTrip(q)
	var reason []byte
	if err == nil {
		reason, err = io.ReadAll(io.LimitReader(answer.Body, maxReason))
		answer.Body.Close()
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if b != nil {
		cancel(nil)
		<-b.closed
		if b.failure != nil {
			return b.failure
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errBroken, err)
	case answer.StatusCode != http.StatusNoContent:
		return fmt.Errorf("the other host cannot receive: it replied %+q", reason)
	}
	return nil
}

// body is the body of a request.
type body struct {
	next     func() ([]byte, error) // makes more; io.EOF at the end
	ctx      context.Context
	limiter  *rate.Limiter
	progress func()

	mutex   sync.Mutex
	rest    []byte
	written int64
	failure error // to read a file
	over    bool
	closed  chan struct{}
}

// newBody returns a body that has data only, unless it gets a next.
func newBody(data []byte) *body {
	return &body{rest: data, closed: make(chan struct{}), next: func() ([]byte, error) { return nil, io.EOF }}
}

// Read implements [io.Reader].
func (b *body) Read(data []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	part, err := b.slice(len(data))
	return copy(data, part), err
}

// WriteTo implements [io.WriterTo], which saves a copy.
func (b *body) WriteTo(w io.Writer) (n int64, err error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	for {
		part, err := b.slice(sliceSize)
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		var m int
		if err == nil {
			m, err = w.Write(part)
		}
		if n += int64(m); err != nil {
			return n, err
		}
	}
}

// slice returns what is to be written next, once that is allowed.
func (b *body) slice(most int) (part []byte, err error) {
	if b.over {
		return nil, net.ErrClosed
	}
	b.progress()
	if len(b.rest) == 0 {
		if b.rest, err = b.next(); err != nil {
			if !errors.Is(err, io.EOF) {
				b.failure = err
			}
			return nil, err
		}
	}
	most = min(most, len(b.rest))
	if b.limiter != nil {
		most = min(most, b.limiter.Burst())
		if err := b.limiter.WaitN(b.ctx, most); err != nil {
			return nil, err
		}
	}
	part, b.rest = b.rest[:most], b.rest[most:]
	b.written += int64(most)
	return part, nil
}

// Close implements [io.Closer].
func (b *body) Close() error {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if !b.over {
		b.over = true
		close(b.closed)
	}
	return nil
}
