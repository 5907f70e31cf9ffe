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
	source *source
	sender *wire.Sender
	cancel context.CancelFunc
	sent   atomic.Int64
	totals wire.Totals
}

// open has the destination listen for a round, and connects. The job runs on meanwhile.
func (s *source) open(ctx context.Context, r round) (w *way, err error) {
	err = s.phase("open the way for data", func() error {
		if err := s.remote.Send(sayRound, r); err != nil {
			return err
		}
		var at listening
		if err := s.remote.expect(ctx, sayListening, &at); err != nil {
			return err
		}
		config, err := s.identity.ClientConfig(s.remote.peer.Fingerprint)
		if err != nil {
			return err
		}
		dial := s.options.dataDialer(at, config)
		// The first connection shows that there is a way, before anything is touched.
		first, err := dial(ctx)
		if err != nil {
			return fmt.Errorf("no connection for data to %s (%v): %w; name its open ports with --ports, one of its addresses with --bind, or use --via ssh", s.options.Host, at.Addresses, err)
		}
		connections := make(chan net.Conn, 1)
		connections <- first
		w = &way{source: s}
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
			Streams: s.streams(), BytesPerSecond: s.options.BytesPerSecond, Progress: w.sent.Store,
		})
		return err
	})
	return w, err
}

// streams is the number of connections: TLS takes a core for each 2 to 5 GB/s.
func (s *source) streams() int { return streamsOf(s.options) }

func streamsOf(o Options) int {
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
	w.source.tell(Progress{Phase: "send", Done: w.sent.Load, Total: o.total})
	return w.send(ctx, o.files)
}

// send sends files, and waits until they are there.
func (w *way) send(ctx context.Context, files []wire.File) error {
	return w.source.remote.whileConnected(ctx, dataPatience, func(ctx context.Context) (err error) {
		if err = w.sender.Files(ctx, files); err == nil {
			w.totals, err = w.sender.Finish(ctx)
		}
		return err
	})
}

func (w *way) close() { w.cancel() }
