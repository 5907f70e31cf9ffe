package migrate

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"cucriu/hooks/migrate/wire"
)

// way is how the files of one round get to the destination.
type way struct {
	source *source
	sender *wire.Sender
	cancel context.CancelFunc
	sent   atomic.Int64
	files  *outgoing
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
		if err == nil {
			w.files = newOutgoing(ctx, w.sender)
		}
		return err
	})
	return w, err
}

// hostName is the part of what ssh takes that may be a name: USER@HOST.
func hostName(host string) string {
	for i := len(host) - 1; i >= 0; i-- {
		if host[i] == '@' {
			return host[i+1:]
		}
	}
	return host
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
	total, err := w.files.complete(dir, d.replaced)
	if err == nil && !d.unshared {
		var more int64
		more, err = w.files.complete(d.dir, d.links)
		total += more
	}
	if err != nil {
		return err
	}
	w.source.tell(Progress{Phase: "send", Done: w.sent.Load, Total: total})
	return w.finish(ctx)
}

// whileSending does something that is given up when what was sent meanwhile could not be.
func (w *way) whileSending(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	sending := w.files.Context()
	defer context.AfterFunc(sending, func() { cancel(context.Cause(sending)) })()
	return do(ctx)
}

// finish waits until everything is there.
func (w *way) finish(ctx context.Context) error {
	finished := make(chan struct{})
	defer close(finished)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // the control connection may tell first that the destination has gone
		select {
		case <-w.source.remote.Done():
			cause := w.source.remote.lastWords(ctx)
			select {
			case <-finished:
			case <-time.After(time.Second): // for what the receiver says over the data connections
				cancel(cause)
			}
		case <-finished:
		}
	}()
	err := w.files.Wait(ctx)
	if err == nil {
		w.totals, err = w.sender.Finish(ctx)
	}
	return err
}

func (w *way) close() {
	w.cancel()
	w.files.close()
}
