package migrate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"cucriu/internal/migrate/delta"
	"cucriu/internal/migrate/wire"
)

// transfer sends the files of one round to the destination. Those of the GPU state leave while the
// dump still writes them, and while criu writes its own.
type transfer struct {
	from   *sourceSession
	sender *wire.Sender
	cancel context.CancelFunc
	totals wire.Totals

	mu    sync.Mutex
	files map[string]*outgoingFile
}

type outgoingFile struct {
	*os.File
	sent *wire.File
}

// open has the destination listen for a round, and connects.
func (s *sourceSession) open(ctx context.Context, r round) (t *transfer, err error) {
	err = s.phase("open the way for data", func() error {
		t, err = s.openRound(ctx, r)
		return err
	})
	return t, err
}

func (s *sourceSession) openRound(ctx context.Context, r round) (*transfer, error) {
	if err := s.remote.Send(sayRound, r); err != nil {
		return nil, err
	}
	var at listening
	if err := s.remote.expect(ctx, sayListening, &at); err != nil {
		return nil, err
	}
	config, err := s.identity.ClientConfig(s.remote.peer.Fingerprint)
	if err != nil {
		return nil, err
	}
	o := &s.options
	options := wire.SendOptions{Dial: o.dataDialer(at, config), Streams: o.streams(), BytesPerSecond: o.BytesPerSecond}
	if !r.Probe && o.Compress != CompressNever {
		options.Compress, options.Auto, options.Link = true, o.Compress == CompressAuto, s.result.Bandwidth
	}
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	t := &transfer{from: s, cancel: cancel, files: make(map[string]*outgoingFile)}
	if t.sender, err = wire.NewSender(lasting, options); err != nil {
		cancel()
		return nil, err
	}
	// The first connection shows that there is a way, before anything is touched.
	first, err := t.sender.Connect(ctx)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("cannot open a data connection to %s (%v): %w; specify its open ports with --ports or another of its addresses with --bind, or tunnel the data with --via ssh", o.Host, at.Addresses, err)
	}
	s.result.MTU = mtuOf(first)
	return t, nil
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

// wrote sends a part of a file that the dump has completed. It does not wait for that.
func (t *transfer) wrote(f *os.File, offset, size int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	name := filepath.Base(f.Name())
	if t.files[name] == nil {
		own, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0) // the dump closes its own
		if err != nil {
			return // it is sent with the others
		}
		t.add(name, os.NewFile(uintptr(own), name))
	}
	t.files[name].sent.Grow(offset + size)
}

func (t *transfer) add(name string, f *os.File) {
	t.files[name] = &outgoingFile{File: f, sent: t.sender.Add(name, f)}
}

// send sends a file, by a name of the round, and returns its size. A part of it may have been sent.
func (t *transfer) send(name, path string) (size int64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.files[name] == nil {
		f, err := os.Open(path)
		if err != nil {
			return 0, err
		}
		t.add(name, f)
	}
	f := t.files[name]
	own, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if now, err := os.Stat(path); err != nil || !os.SameFile(own, now) {
		return 0, fmt.Errorf("%s was replaced while it was being sent", path)
	}
	f.sent.Complete(own.Size())
	return own.Size(), nil
}

// sendDir sends what there is of an image in a directory, except for some files, and returns its
// size in bytes.
func (t *transfer) sendDir(dir string, except []string) (total int64, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, entry := range entries {
		if !entry.Type().IsRegular() || slices.Contains(except, entry.Name()) {
			continue
		}
		size, err := t.send(entry.Name(), filepath.Join(dir, entry.Name()))
		if err != nil {
			return 0, err
		}
		total += size
	}
	return total, nil
}

// sendImage sends the files of an image that the destination does not have, and waits until they
// are there. That is a phase.
func (t *transfer) sendImage(ctx context.Context, phase, dir string, d *delta.Delta) error {
	return t.from.phase(phase, func() error {
		total, err := t.sendDir(dir, d.Replaced)
		if err == nil && len(d.Replaced) > 0 {
			var more int64
			more, err = t.sendDir(d.Dir, d.Links)
			total += more
		}
		if err != nil {
			return err
		}
		return t.finish(ctx, phase, total)
	})
}

// whileSending does something that is given up when what was sent meanwhile could not be.
func (t *transfer) whileSending(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	sending := t.sender.Context()
	defer context.AfterFunc(sending, func() { cancel(context.Cause(sending)) })()
	return givenUp(ctx, do(ctx))
}

// givenUp returns the error of something that ctx may have ended, with the reason if the error says only that it did.
func givenUp(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) && !errors.Is(err, cause) {
		return fmt.Errorf("%w (%w)", cause, err)
	}
	return err
}

// finish waits until everything is there.
func (t *transfer) finish(ctx context.Context, phase string, total int64) error {
	t.from.tell(Progress{Phase: phase, Done: t.sender.Arrived, Total: total})
	return t.from.remote.whileConnected(ctx, dataPatience, func(ctx context.Context) (err error) {
		t.totals, err = t.sender.Finish(ctx)
		t.from.result.Link += t.totals.Sent
		return err
	})
}

func (t *transfer) close() {
	t.cancel()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.files {
		f.Close()
	}
}
