package wire

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// backoffFirst and backoffLast are the pauses between two attempts to connect.
	backoffFirst = 100 * time.Millisecond
	backoffLast  = 3 * time.Second
	// fruitlessTries is how many connections in a row, per stream, may break before anything
	// got through: a network may let small packets pass, and no large ones.
	fruitlessTries = 3
)

// stream makes one connection after another, until the transfer is over.
func (s *Sender) stream(p *packer) {
	defer p.close()
	backoff := backoffFirst
	for s.ctx.Err() == nil {
		worked, err := s.once(p)
		if err != nil && !errors.Is(err, errBroken) {
			s.end(err)
			return
		}
		if worked {
			backoff = backoffFirst
		}
		pause(s.ctx, backoff)
		backoff = min(2*backoff, backoffLast)
	}
}

// once makes a connection and sends over it until it ends. It reports whether anything got
// through. An error that is not errBroken ends the transfer.
func (s *Sender) once(p *packer) (worked bool, err error) {
	conn, err := s.options.Dial(s.ctx)
	if err != nil {
		err = fmt.Errorf("%w: %w", errBroken, err)
		s.lose(err)
		return false, err
	}
	c := newConnection(s, conn, p)
	defer c.close()
	if err := c.welcome(); err != nil {
		s.lose(err)
		return false, err
	}
	s.up()
	err = c.carry()
	for _, lost := range c.unacknowledged {
		lost.resent = true
		select {
		case s.again <- lost:
		case <-s.ctx.Done():
		}
	}
	s.down(c, err)
	return c.acked > 0, err
}

// lose notes what happened to a connection that did not come to work.
func (s *Sender) lose(err error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.lost = err
}

// up notes a connection that works.
func (s *Sender) up() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.live++
	s.totals.Connections++
	s.lonely.Stop()
}

// down notes the end of a connection.
func (s *Sender) down(c *connection, err error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.live--
	s.lost = err
	s.totals.Sent += c.sent
	s.totals.Resent += c.resent
	s.totals.Holes += c.holes
	if s.live == 0 {
		s.lonely.Reset(s.options.Patience)
	}
	if c.acked > 0 {
		s.fruitless = 0
	} else if len(c.unacknowledged) > 0 {
		s.fruitless++
	}
	if s.fruitless > fruitlessTries*s.options.Streams {
		s.end(fmt.Errorf("send: %d connections in a row broke before anything got through: %w", s.fruitless, err))
	}
}

// alone ends the transfer if there is still no connection.
func (s *Sender) alone() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.live > 0 {
		return
	}
	err := s.lost
	if err == nil {
		err = context.DeadlineExceeded
	}
	s.end(fmt.Errorf("send: no data connection to the other host for %v: %w", s.options.Patience, err))
}

// slice is how much is sent at once under a limit. Every connection must get its turn before
// the other side takes it for dead.
func slice(bytesPerSecond int64, streams int) int {
	return int(min(max(bytesPerSecond/int64(4*streams), 128), 64<<10))
}
