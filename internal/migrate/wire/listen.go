package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"log"
	"log/slog"
	"net"
	"sync"
	"time"
)

// handshakeTimeout is how long a peer may take to prove who it is.
const handshakeTimeout = 10 * time.Second

// ListenOptions says where to listen, and for whom.
type ListenOptions struct {
	// Bind is the addresses to listen on; none means all of the host.
	Bind []string
	// Ports is a port or a range, such as 7000-7010; empty means any free port.
	Ports string
	// Config comes from [Identity.ServerConfig].
	Config *tls.Config
	// Log is told of the first connection that was refused. Nil discards that.
	Log *slog.Logger
}

// Receive listens for the pinned sender, and receives files from it, until ctx ends or Finish is
// called.
func Receive(ctx context.Context, l ListenOptions, o ReceiveOptions) (*Receiver, error) {
	if l.Config == nil {
		return nil, errors.New("listen: no peer certificate is pinned")
	}
	listeners, err := bind(ctx, l.Bind, l.Ports)
	if err != nil {
		return nil, err
	}
	r := newReceiver(l.Log, o)
	if r.addresses, err = announced(listeners); err != nil {
		closeListeners(listeners)
		return nil, err
	}
	context.AfterFunc(ctx, func() { r.server.Close() })
	for _, listener := range listeners {
		go func() { _ = r.server.Serve(tls.NewListener(listener, l.Config)) }()
	}
	return r, nil
}

// Addresses returns where the sender may find this host, as HOST:PORT.
func (r *Receiver) Addresses() []string { return r.addresses }

// refusals logs the first connection that was refused: those who look for open ports may make many.
type refusals struct {
	log  *slog.Logger
	once sync.Once
}

// logger returns a logger for an HTTP server.
func (r *refusals) logger() *log.Logger { return log.New(r, "", 0) }

// Write implements [io.Writer].
func (r *refusals) Write(line []byte) (int, error) {
	if r.log != nil {
		r.once.Do(func() {
			r.log.Warn("refused a data connection; further ones are not logged", "error", string(line))
		})
	}
	return len(line), nil
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
