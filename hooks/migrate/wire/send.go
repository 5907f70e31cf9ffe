package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/time/rate"

	"cucriu/criuutil/pages"
	"cucriu/internal/failpoint"
)

const (
	maxStreams     = 32
	defaultStreams = 4
	// queued is how many pieces may wait for a connection.
	queued = 256
	// defaultPatience is how long a sender goes on without any connection.
	defaultPatience = 30 * time.Second
)

// SendOptions says how to send.
type SendOptions struct {
	// Dial makes a connection on which the receiver has proved who it is.
	Dial func(ctx context.Context) (net.Conn, error)
	// Streams is how many connections there are at once, up to 32; 0 is 4.
	Streams int
	// BytesPerSecond bounds what all connections send together; 0 is no limit.
	BytesPerSecond int64
	// Codec compresses chunks; those that do not get smaller are sent as they are. Zero is none.
	Codec pages.Codec
	// Auto compresses only the chunks that are sooner at the receiver then. Link is how many bytes a
	// second the way takes for that; if it is 0, it is measured.
	Auto bool
	Link float64
	// Patience is how long to go on without any connection; 0 is 30 s.
	Patience time.Duration
	// Progress is told how many bytes of the files are there. It must not wait. May be nil.
	Progress func(sent int64)
}

// Totals says what a transfer was.
type Totals struct {
	Files       int
	Bytes       int64 // of the files
	Holes       int64 // of these, in chunks of zeros, which are not sent
	Sent        int64 // over the connections, without what TLS adds
	Resent      int64 // of the files, because connections broke
	Connections int   // that were made
}

// Sender sends files. All methods may be called by several goroutines. Pieces of files go out
// in the order in which they were queued, spread over the connections.
type Sender struct {
	options SendOptions
	limiter *rate.Limiter // nil without a limit
	link    link
	ctx     context.Context
	end     context.CancelCauseFunc

	fresh   chan piece
	again   chan piece // what broken connections had; never full
	running sync.WaitGroup
	pending atomic.Int64  // pieces that are queued, or not acknowledged
	settled chan struct{} // pending may be 0

	mutex     sync.Mutex
	files     map[string]*outFile
	finishing bool
	totals    Totals
	live      int         // connections
	fruitless int         // connections in a row over which nothing got through
	lonely    *time.Timer // ends the transfer; runs while there is no connection
	lost      error       // what happened to the last connection

	report sync.Mutex // one call of Progress at a time
	there  int64      // bytes
}

// outFile is a file that is sent.
type outFile struct {
	number uint32
	name   string
	size   int64 // -1 until it is closed
}

// piece is what one frame is about.
type piece struct {
	kind   kind
	file   *outFile // nil for the last
	reader io.ReaderAt
	offset int64 // of a chunk; else what the frame says
	size   uint32
	stored uint32 // bytes of the frame, once it was sent
	resent bool
}

// RemoteError is why the receiver has ended the transfer, in its words.
type RemoteError struct {
	Reason  string
	NoSpace bool
}

func (e *RemoteError) Error() string {
	return fmt.Sprintf("the other host cannot receive: it says %+q", e.Reason)
}

// Is makes the receiver's lack of space known as [syscall.ENOSPC].
func (e *RemoteError) Is(target error) bool { return e.NoSpace && target == syscall.ENOSPC }

// NewSender begins to make connections. Everything ends when ctx does.
func NewSender(ctx context.Context, o SendOptions) (*Sender, error) {
	if o.Streams == 0 {
		o.Streams = defaultStreams
	}
	if o.Patience <= 0 {
		o.Patience = failpoint.Patience(defaultPatience)
	}
	if o.Dial == nil || o.Streams < 0 || o.Streams > maxStreams || o.BytesPerSecond < 0 || !(o.Link >= 0) {
		return nil, fmt.Errorf("send: %d streams of at most %d, %d bytes per second", o.Streams, maxStreams, o.BytesPerSecond)
	}
	s := &Sender{
		options: o,
		fresh:   make(chan piece, queued),
		again:   make(chan piece, o.Streams*(windowPieces+1)),
		settled: make(chan struct{}, 1),
		files:   make(map[string]*outFile),
	}
	if o.BytesPerSecond > 0 {
		s.limiter = rate.NewLimiter(rate.Limit(o.BytesPerSecond), slice(o.BytesPerSecond, o.Streams))
	}
	packers, err := newPackers(o, &s.link)
	if err != nil {
		return nil, fmt.Errorf("send: %w", err)
	}
	s.ctx, s.end = context.WithCancelCause(ctx)
	s.lonely = time.AfterFunc(o.Patience, s.alone)
	for _, p := range packers {
		s.running.Go(func() { s.stream(p) })
	}
	return s, nil
}

// Range queues a part of a file. It waits while the queue is full. The part must be there
// already, must not change, and must stay readable until Finish returns, because it is read
// when it is sent, and again if a connection breaks. Parts of a file must not overlap. The
// receiver's kernel lets only one write at a time into a file, so several large files are sent
// faster when their parts are queued side by side.
func (s *Sender) Range(ctx context.Context, name string, f io.ReaderAt, offset, length int64) error {
	if offset < 0 || length < 0 || length > maxOffset || offset > maxOffset-length {
		return fmt.Errorf("send: %d bytes at %d of %s", length, offset, name)
	}
	file, err := s.file(name)
	if err != nil {
		return err
	}
	for end := offset + length; offset < end; {
		// Cut at multiples of the size of a chunk, so that pages stay whole.
		size := min(end-offset, chunkSize-offset%chunkSize)
		err := s.put(ctx, piece{kind: chunkFrame, file: file, reader: f, offset: offset, size: uint32(size)})
		if err != nil {
			return err
		}
		offset += size
	}
	return nil
}

// Close says that all parts of a file are queued, and how large it is.
func (s *Sender) Close(ctx context.Context, name string, size int64) error {
	if size < 0 || size > maxOffset {
		return fmt.Errorf("send: %s of %d bytes", name, size)
	}
	file, err := s.file(name)
	if err != nil {
		return err
	}
	s.mutex.Lock()
	closed := file.size >= 0
	if !closed {
		file.size = size
		s.totals.Files++
		s.totals.Bytes += size
	}
	s.mutex.Unlock()
	if closed {
		return fmt.Errorf("send: %s is complete already", name)
	}
	return s.put(ctx, piece{kind: closedFrame, file: file, offset: size})
}

// Finish waits until the receiver has acknowledged that all files are complete there, and closes
// the connections. If ctx ends before, the transfer is over as well.
func (s *Sender) Finish(ctx context.Context) (Totals, error) {
	s.mutex.Lock()
	s.finishing = true
	last := piece{kind: finishFrame, offset: s.totals.Bytes, size: uint32(s.totals.Files)}
	s.mutex.Unlock()
	err := s.settle(ctx)
	if err == nil {
		err = context.Cause(s.ctx)
	}
	if err == nil {
		s.pending.Add(1)
		s.fresh <- last // the queue is empty
		err = s.settle(ctx)
	}
	if err != nil {
		s.end(err)
	} else {
		s.end(errOver)
	}
	s.running.Wait()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.lonely.Stop()
	return s.totals, err
}

// settle waits until everything that was queued is acknowledged.
func (s *Sender) settle(ctx context.Context) error {
	for s.pending.Load() > 0 {
		select {
		case <-s.settled:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// acknowledged notes pieces that are there.
func (s *Sender) acknowledged(pieces []piece) {
	var bytes, stored int64
	for _, p := range pieces {
		if p.kind == chunkFrame {
			bytes += int64(p.size)
			stored += int64(p.stored)
		}
	}
	s.link.there(stored)
	if s.options.Progress != nil && bytes > 0 {
		s.report.Lock()
		s.there += bytes
		s.options.Progress(s.there)
		s.report.Unlock()
	}
	if s.pending.Add(-int64(len(pieces))) == 0 {
		select {
		case s.settled <- struct{}{}:
		default:
		}
	}
}

func (s *Sender) file(name string) (*outFile, error) {
	if err := checkName(name); err != nil {
		return nil, fmt.Errorf("send: %w", err)
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.finishing {
		return nil, errors.New("send: the transfer is being finished")
	}
	f, known := s.files[name]
	if !known {
		f = &outFile{number: uint32(len(s.files)), name: name, size: -1}
		s.files[name] = f
	}
	return f, nil
}

func (s *Sender) put(ctx context.Context, p piece) error {
	if err := context.Cause(s.ctx); err != nil {
		return err
	}
	s.pending.Add(1)
	select {
	case s.fresh <- p:
		return nil
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	case <-ctx.Done():
		s.pending.Add(-1)
		return context.Cause(ctx)
	}
}
