package migrate

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
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
		options := wire.SendOptions{
			Dial: func(ctx context.Context) (net.Conn, error) {
				select {
				case conn := <-connections:
					return conn, nil
				default:
					return dial(ctx)
				}
			},
			Streams: s.streams(), BytesPerSecond: s.options.BytesPerSecond, Progress: w.sent.Store,
		}
		if !r.Probe {
			s.options.Compress.apply(&options, s.result.Bandwidth)
		}
		w.sender, err = wire.NewSender(ctx, options)
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
	files, total, err := openPlain(dir, d.replaced)
	defer func() { closeAll(files) }()
	if err == nil && !d.unshared {
		var more []plainFile
		var size int64
		more, size, err = openPlain(d.dir, d.links)
		files, total = append(files, more...), total+size
	}
	if err != nil {
		return err
	}
	w.source.tell(Progress{Phase: "send", Done: w.sent.Load, Total: total})
	if err := w.queue(ctx, files); err != nil {
		return err
	}
	return w.finish(ctx)
}

// queue queues files piece by piece, side by side: the kernel allows only one write into a file at
// a time.
func (w *way) queue(ctx context.Context, files []plainFile) error {
	const piece = 4 << 20
	for offset, left := int64(0), slices.Clone(files); len(left) > 0; offset += piece {
		for _, f := range left {
			if err := w.sender.Range(ctx, filepath.Base(f.Name()), f, offset, min(piece, f.size-offset)); err != nil {
				return err
			}
		}
		var done error
		left = slices.DeleteFunc(left, func(f plainFile) bool {
			if done != nil || f.size > offset+piece {
				return false
			}
			done = w.sender.Close(ctx, filepath.Base(f.Name()), f.size)
			return true
		})
		if done != nil {
			return done
		}
	}
	return nil
}

type plainFile struct {
	*os.File
	size int64
}

// openPlain opens the regular files of a directory, and sums up their sizes.
func openPlain(dir string, except []string) (files []plainFile, total int64, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, 0, err
	}
	for _, entry := range entries {
		if !entry.Type().IsRegular() || slices.Contains(except, entry.Name()) {
			continue
		}
		f, err := os.Open(filepath.Join(dir, entry.Name()))
		if err != nil {
			return files, 0, err
		}
		files = append(files, plainFile{File: f})
		info, err := f.Stat()
		if err != nil {
			return files, 0, err
		}
		files[len(files)-1].size = info.Size()
		total += info.Size()
	}
	return files, total, nil
}

func closeAll(files []plainFile) {
	for _, f := range files {
		f.Close()
	}
}

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
	var err error
	w.totals, err = w.sender.Finish(ctx)
	return err
}

func (w *way) close() { w.cancel() }
