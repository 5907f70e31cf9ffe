package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"
)

const (
	handshakeTimeout = 10 * time.Second
	handshakesAtOnce = 32
)

// ListenOptions says where to listen, and for whom.
type ListenOptions struct {
	// Bind is the addresses to listen on; none means all of the host.
	Bind []string
	// Ports is a port or a range, such as 7000-7010; empty means any free port.
	Ports string
	// Config comes from [Identity.ServerConfig].
	Config *tls.Config
	// HandshakeTimeout is how long a peer may take to prove who it is; 0 is 10 s.
	HandshakeTimeout time.Duration
	// Handshakes is how many peers may be doing so at once; 0 is 32. The one that has taken
	// longest makes room for the next, so that silent ones keep nobody out.
	Handshakes int
	// Log is told of the first peer of each kind that was refused. Nil discards that.
	Log *slog.Logger
}

// Listener accepts connections of the pinned peer only.
type Listener struct {
	options   ListenOptions
	listeners []net.Listener
	addresses []string
	accepted  chan net.Conn
	ctx       context.Context
	cancel    context.CancelCauseFunc
	running   sync.WaitGroup

	mutex       sync.Mutex
	handshaking []net.Conn // oldest first
	refused     map[string]int
}

// errCrowded says that a peer had to make room for another.
var errCrowded = errors.New("too many connections that do not prove who they are")

// Listen listens until ctx ends or the listener is closed.
func Listen(ctx context.Context, o ListenOptions) (*Listener, error) {
	if o.Config == nil {
		return nil, errors.New("listen: nobody is pinned")
	}
	if o.HandshakeTimeout <= 0 {
		o.HandshakeTimeout = handshakeTimeout
	}
	if o.Handshakes <= 0 {
		o.Handshakes = handshakesAtOnce
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	listeners, err := bind(ctx, o.Bind, o.Ports)
	if err != nil {
		return nil, err
	}
	l := &Listener{options: o, listeners: listeners, accepted: make(chan net.Conn), refused: make(map[string]int)}
	if l.addresses, err = announced(listeners); err != nil {
		closeListeners(listeners)
		return nil, err
	}
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	context.AfterFunc(l.ctx, func() { closeListeners(listeners) })
	for _, listener := range listeners {
		l.running.Go(func() { l.serve(listener) })
	}
	return l, nil
}

// Addresses returns where the peer may find this host, as HOST:PORT.
func (l *Listener) Addresses() []string { return l.addresses }

// Accept returns the next connection on which the peer has proved who it is.
func (l *Listener) Accept(ctx context.Context) (net.Conn, error) {
	select {
	case conn := <-l.accepted:
		return conn, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-l.ctx.Done():
		return nil, context.Cause(l.ctx)
	}
}

// Refused returns how many connections were refused, by reason.
func (l *Listener) Refused() map[string]int {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	counted := make(map[string]int, len(l.refused))
	for reason, n := range l.refused {
		counted[reason] = n
	}
	return counted
}

// Close ends the listening. Connections that were accepted stay.
func (l *Listener) Close() error {
	l.cancel(net.ErrClosed)
	l.running.Wait()
	return nil
}

func (l *Listener) serve(listener net.Listener) {
	for l.ctx.Err() == nil {
		conn, err := listener.Accept()
		if err != nil {
			if l.ctx.Err() == nil { // out of descriptors, for example
				l.refuse("cannot accept", listener.Addr(), err)
				pause(l.ctx, 100*time.Millisecond)
			}
			continue
		}
		l.enter(conn)
		l.running.Go(func() { l.handshake(conn) })
	}
}

// enter notes a connection as handshaking, and makes room for it.
func (l *Listener) enter(conn net.Conn) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if len(l.handshaking) == l.options.Handshakes {
		l.handshaking[0].Close()
		l.handshaking = l.handshaking[1:]
	}
	l.handshaking = append(l.handshaking, conn)
}

// leave reports whether the connection was still noted as handshaking.
func (l *Listener) leave(conn net.Conn) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for i, c := range l.handshaking {
		if c == conn {
			l.handshaking = append(l.handshaking[:i:i], l.handshaking[i+1:]...)
			return true
		}
	}
	return false
}

func (l *Listener) handshake(raw net.Conn) {
	ctx, cancel := context.WithTimeout(l.ctx, l.options.HandshakeTimeout)
	defer cancel()
	conn, err := Server(ctx, raw, l.options.Config)
	if !l.leave(raw) {
		err = errCrowded
	}
	if err == nil {
		select {
		case l.accepted <- conn:
			return
		case <-l.ctx.Done():
		}
	}
	raw.Close()
	if l.ctx.Err() != nil {
		return
	}
	l.refuse(refusal(ctx, err), raw.RemoteAddr(), err)
}

// refusal is the kind of a failed handshake.
func refusal(ctx context.Context, err error) string {
	switch {
	case errors.Is(err, ErrNotPinned):
		return "not pinned"
	case errors.Is(err, errCrowded):
		return "crowded"
	case ctx.Err() != nil:
		return "too slow"
	}
	return "handshake failed"
}

func (l *Listener) refuse(reason string, from net.Addr, err error) {
	l.mutex.Lock()
	l.refused[reason]++
	first := l.refused[reason] == 1
	l.mutex.Unlock()
	if first {
		l.options.Log.Warn("refused a data connection; more of this kind are only counted", "reason", reason, "from", from.String(), "error", err)
	}
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func closeListeners(listeners []net.Listener) {
	for _, l := range listeners {
		l.Close()
	}
}
