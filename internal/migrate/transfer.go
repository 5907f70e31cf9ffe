package migrate

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"runtime"

	"golang.org/x/sys/unix"

	"cucriu/internal/migrate/wire"
)

// way is how the files of one round get to the destination.
type way struct {
	from   *departure
	sender *wire.Sender
	cancel context.CancelFunc
	files  *outgoing
	totals wire.Totals
}

// open has the destination listen for the round that a message announces, and connects.
func (d *departure) open(ctx context.Context, kind string, round round) (w *way, err error) {
	if err := d.remote.Send(kind, round); err != nil {
		return nil, err
	}
	var at listening
	if err := d.remote.expect(ctx, sayListening, &at); err != nil {
		return nil, err
	}
	config, err := d.identity.ClientConfig(d.remote.peer.Fingerprint)
	if err != nil {
		return nil, err
	}
	options := wire.SendOptions{Dial: d.options.dataDialer(at, config), Streams: d.options.streams(), BytesPerSecond: d.options.BytesPerSecond}
	if !round.Probe {
		d.options.Compress.apply(&options, d.result.Bandwidth)
	}
	w = &way{from: d}
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w.cancel = cancel
	if w.sender, err = wire.NewSender(lasting, options); err != nil {
		cancel()
		return nil, err
	}
	// The first connection shows that there is a way, before anything is touched.
	first, err := w.sender.Connect(ctx)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("no connection for data to %s (%v): %w; name its open ports with --ports, one of its addresses with --bind, or use --via ssh", d.options.Host, at.Addresses, err)
	}
	d.result.MTU = mtuOf(first)
	w.files = newOutgoing(w.sender)
	return w, nil
}

// mtuOf returns the size of the packets on a connection's path, 0 if it is not TCP.
func mtuOf(conn net.Conn) int {
	secured, ok := conn.(*tls.Conn)
	if !ok {
		return 0
	}
	raw, ok := secured.NetConn().(*net.TCPConn)
	if !ok {
		return 0
	}
	c, err := raw.SyscallConn()
	if err != nil {
		return 0
	}
	mtu := 0
	_ = c.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			mtu = int(info.Pmtu)
		}
	})
	return mtu
}

// streams is the number of connections: TLS takes a core for each 2 to 5 GB/s.
func (o *Options) streams() int {
	if o.Streams > 0 {
		return o.Streams
	}
	if o.ViaSSH {
		return 4
	}
	return max(2, min(16, runtime.NumCPU()/2))
}

// sendImage sends the files of an image that the destination does not have, and waits until they
// are there. That is a phase.
func (w *way) sendImage(ctx context.Context, phase, dir string, d *delta) error {
	return w.from.phase(phase, func() error {
		total, err := w.files.complete(dir, d.replaced)
		if err == nil && len(d.replaced) > 0 {
			var more int64
			more, err = w.files.complete(d.dir, d.links)
			total += more
		}
		if err != nil {
			return err
		}
		w.from.tell(Progress{Phase: phase, Done: w.sender.Arrived, Total: total})
		return w.finish(ctx)
	})
}

// whileSending does something that is given up when what was sent meanwhile could not be.
func (w *way) whileSending(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	sending := w.sender.Context()
	defer context.AfterFunc(sending, func() { cancel(context.Cause(sending)) })()
	return do(ctx)
}

// finish waits until everything is there.
func (w *way) finish(ctx context.Context) error {
	return w.from.remote.whileConnected(ctx, dataPatience, func(ctx context.Context) (err error) {
		w.totals, err = w.sender.Finish(ctx)
		return err
	})
}

func (w *way) close() {
	w.cancel()
	w.files.close()
}
