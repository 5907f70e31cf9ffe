package migrate

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync/atomic"

	"cucriu/hooks/migrate/wire"
)

// way is how the files of one round get to the destination.
type way struct {
	from   *departure
	sender *wire.Sender
	cancel context.CancelFunc
	sent   atomic.Int64
	totals wire.Totals
}

// open has the destination listen for the round that a message announces, and connects.
func (d *departure) open(ctx context.Context, kind string, round any) (w *way, err error) {
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
	dial := d.options.dataDialer(at, config)
	// The first connection shows that there is a way, before anything is touched.
	first, err := dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("no connection for data to %s (%v): %w; name its open ports with --ports, one of its addresses with --bind, or use --via ssh", d.options.Host, at.Addresses, err)
	}
	connections := make(chan net.Conn, 1)
	connections <- first
	w = &way{from: d}
	ctx, w.cancel = context.WithCancel(context.WithoutCancel(ctx))
	w.sender, err = wire.NewSender(ctx, wire.SendOptions{
		Dial: func(ctx context.Context) (net.Conn, error) {
			select {
			case conn := <-connections:
				return conn, nil
			default:
				return dial(ctx)
			}
		},
		Streams: d.options.streams(), BytesPerSecond: d.options.BytesPerSecond, Progress: w.sent.Store,
	})
	return w, err
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
// are there.
func (w *way) sendImage(ctx context.Context, dir string, d *delta) error {
	o := new(outgoing)
	defer o.close()
	err := o.openDir(dir, d.replaced)
	if err == nil && !d.unshared {
		err = o.openDir(d.dir, d.links)
	}
	if err != nil {
		return err
	}
	w.from.tell(Progress{Phase: "send", Done: w.sent.Load, Total: o.total})
	return w.send(ctx, o.files)
}

// send sends files, and waits until they are there.
func (w *way) send(ctx context.Context, files []wire.File) error {
	return w.from.remote.whileConnected(ctx, dataPatience, func(ctx context.Context) (err error) {
		if err = w.sender.Files(ctx, files); err == nil {
			w.totals, err = w.sender.Finish(ctx)
		}
		return err
	})
}

func (w *way) close() { w.cancel() }
