package wire

import (
	"context"
	"net"
	"os"
	"sync/atomic"
	"testing"
)

// local makes pipes to a receiver, for tests with a clock of their own.
type local struct {
	t        *testing.T
	receiver *Receiver
	dials    atomic.Int64
	wrap     func(n int64, conn net.Conn) net.Conn // the sender's end; may be nil
}

func (l *local) dial(ctx context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go func() { _ = l.receiver.Serve(ctx, theirs) }()
	n := l.dials.Add(1)
	if l.wrap != nil {
		return l.wrap(n, ours), nil
	}
	return ours, nil
}

func newLocal(t *testing.T, o ReceiveOptions) *local {
	t.Helper()
	root, err := os.OpenRoot(t.TempDir())
	must(t, err)
	t.Cleanup(func() { root.Close() })
	o.Dir = root
	if o.MaxBytes == 0 {
		o.MaxBytes, o.MaxFiles = 1<<30, 100
	}
	return &local{t: t, receiver: NewReceiver(o)}
}
