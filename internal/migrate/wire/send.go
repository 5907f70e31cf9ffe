package wire

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"cucriu/internal/kit/failpoint"
)

const (
	maxStreams     = 32
	defaultStreams = 4
	// maxRequest is the most that one request has, in bytes. Requests grow up to that while they take
	// less than quick, so that their round trips cost little, and become smaller if they take longer
	// than slow, so that little is sent again if a connection breaks.
	maxRequest = 256 << 20
	quick      = 250 * time.Millisecond
	slow       = time.Second
	// connectTries is how often the first connection may break before it was answered.
	connectTries = 3
	// defaultPatience is how long a sender tries again while nothing gets through.
	defaultPatience = 30 * time.Second
	// backoffFirst and backoffLast are the pauses between two attempts.
	backoffFirst = 100 * time.Millisecond
	backoffLast  = 3 * time.Second
)

// SendOptions says how to send.
type SendOptions struct {
	// Dial makes a connection on which the receiver has proved who it is.
	Dial func(ctx context.Context) (net.Conn, error)
	// Streams is how many connections there are at once, up to 32; 0 is 4.
	Streams int
	// BytesPerSecond bounds what all connections send together; 0 is no limit.
	BytesPerSecond int64
	// Compress compresses what gets smaller, and with Auto only what is sooner at the receiver then.
	// Link is how many bytes a second the way takes for that; if it is 0, it is measured.
	Compress, Auto bool
	Link           float64
	// Patience is how long to try again while nothing gets through; 0 is 30 s.
	Patience time.Duration
}

// Totals says what a transfer was.
type Totals struct {
	Bytes int64 // of the files
	Sent  int64 // over the connections, without what HTTP and TLS add
}

// Sender sends files over several connections, parts of one file over several of them. All methods
// may be called by several goroutines.
type Sender struct {
	options SendOptions
	streams []*stream
	limiter *rate.Limiter // nil without a limit
	link    link
	ctx     context.Context
	end     context.CancelCauseFunc
	running sync.WaitGroup

	mutex    sync.Mutex
	changed  *sync.Cond // there may be something to send, or nothing more
	files    []*File
	turn     int         // the file that is next
	again    []fileRange // what broken connections had
	underway int         // requests
	arrived  int64       // bytes of the files
	worked   time.Time   // when something last arrived
	totals   Totals
}

// stream is one connection after another.
type stream struct {
	*Sender
	http   http.Transport
	packer *packer
}

// File is a file that is sent, and may still grow.
type File struct {
	sender *Sender
	name   string
	reader io.ReaderAt

	size     int64 // that can be sent
	complete bool
	begun    int64 // up to here it is sent, or is being sent
}

// NewSender makes a sender. Everything ends when ctx does.
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
	s := &Sender{options: o}
	s.ctx, s.end = context.WithCancelCause(ctx)
	s.changed = sync.NewCond(&s.mutex)
	context.AfterFunc(s.ctx, s.wake)
	s.link.rate.Store(uint64(min(o.Link, 1<<60)))
	if o.BytesPerSecond > 0 {
		// Every connection gets its turn before it is taken for stalled.
		s.limiter = rate.NewLimiter(rate.Limit(o.BytesPerSecond), int(min(max(o.BytesPerSecond/int64(4*o.Streams), 128), 64<<10)))
	}
	for range o.Streams {
		p, err := newPacker(o, &s.link)
		if err != nil {
			s.end(err)
			return nil, fmt.Errorf("send: %w", err)
		}
		s.streams = append(s.streams, &stream{s, http.Transport{DialTLSContext: s.dial, DisableCompression: true, MaxConnsPerHost: 1}, p})
	}
	for _, c := range s.streams {
		s.running.Go(c.work)
	}
	return s, nil
}

func (s *Sender) dial(context.Context, string, string) (net.Conn, error) {
	conn, err := s.options.Dial(s.ctx)
	if err == nil {
		context.AfterFunc(s.ctx, func() { conn.Close() })
	}
	return conn, err
}

// Connect makes the connections, so that there are some once files are added. It returns the first,
// which stays the sender's, once the receiver has answered over it.
func (s *Sender) Connect(ctx context.Context) (conn net.Conn, err error) {
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { conn = i.Conn }})
	for tries := 1; ; tries++ {
		conn = nil
		err := s.streams[0].request(ctx, http.MethodGet, "", nil)
		if err == nil {
			break
		}
		if conn == nil || tries == connectTries { // nobody answers, or it fails each time
			return nil, err
		}
	}
	for _, c := range s.streams[1:] {
		s.running.Go(func() { _ = c.request(s.ctx, http.MethodGet, "", nil) }) // or with the first ranges
	}
	return conn, nil
}

// Context ends once the transfer has failed. Its cause says why.
func (s *Sender) Context() context.Context { return s.ctx }

// Arrived returns how many bytes of the files have arrived.
func (s *Sender) Arrived() int64 {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.arrived
}

// Await waits until so many bytes of the files have arrived.
func (s *Sender) Await(ctx context.Context, bytes int64) error {
	defer context.AfterFunc(ctx, s.wake)()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for s.ctx.Err() == nil && ctx.Err() == nil && s.arrived < bytes {
		s.changed.Wait()
	}
	return cmp.Or(context.Cause(s.ctx), context.Cause(ctx))
}

// Add begins to send a file, of which nothing is there yet. It must stay readable until Finish
// returns.
func (s *Sender) Add(name string, r io.ReaderAt) *File {
	if err := checkName(name); err != nil {
		s.end(fmt.Errorf("send: %w", err))
	}
	f := &File{sender: s, name: name, reader: r}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.files = append(s.files, f)
	return f
}

// Size returns how much of the file can be sent.
func (f *File) Size() int64 {
	f.sender.mutex.Lock()
	defer f.sender.mutex.Unlock()
	return f.size
}

// Grow says that so much of the file is there and will not change. It never waits.
func (f *File) Grow(size int64) { f.set(size, false) }

// Complete says how large the file is, all of which is there.
func (f *File) Complete(size int64) { f.set(size, true) }

func (f *File) set(size int64, complete bool) {
	f.sender.mutex.Lock()
	f.size, f.complete = size, complete
	f.sender.mutex.Unlock()
	f.sender.wake()
}

// left returns how much can be sent now: whole pieces as long as the file grows.
func (f *File) left() int64 {
	if f.complete {
		return f.size - f.begun
	}
	return f.size - f.size%PieceSize - f.begun
}

func (s *Sender) wake() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.changed.Broadcast()
}

// Finish waits until all files are complete and have arrived, and closes the connections. If ctx
// ends before, the transfer is over as well.
func (s *Sender) Finish(ctx context.Context) (Totals, error) {
	defer context.AfterFunc(ctx, func() { s.end(context.Cause(ctx)) })()
	s.mutex.Lock()
	for s.ctx.Err() == nil && !s.allArrived() {
		s.changed.Wait()
	}
	sizes := make(map[string]int64)
	for _, f := range s.files {
		sizes[f.name] = f.size
		s.totals.Bytes += f.size
	}
	s.mutex.Unlock()
	data, err := json.Marshal(sizes)
	if err == nil {
		err = s.persist(func() error {
			return s.streams[0].request(s.ctx, http.MethodPost, "", newBody(data))
		})
	}
	s.end(err)
	s.running.Wait()
	return s.totals, err
}

// allArrived reports whether all files are complete and have arrived. The caller holds the mutex.
func (s *Sender) allArrived() bool {
	return s.underway == 0 && len(s.again) == 0 && !slices.ContainsFunc(s.files, func(f *File) bool { return !f.complete || f.left() > 0 })
}

// work sends what there is, until the transfer is over.
func (c *stream) work() {
	size := int64(PieceSize) // of the next request
	_ = c.persist(func() error {
		for {
			ranges := c.take(size)
			if len(ranges) == 0 {
				return nil
			}
			begin := time.Now()
			err := c.put(ranges)
			took := time.Since(begin)
			switch c.done(ranges, err); {
			case err != nil:
				size = PieceSize
				return err
			case took < quick:
				size = min(4*size, maxRequest)
			case took > slow:
				size = max(size/2, PieceSize)
			}
		}
	})
}

// persist tries something again as long as only the connection breaks, and something gets through
// now and then. Any other error ends the transfer.
func (s *Sender) persist(do func() error) error {
	backoff, failing := backoffFirst, time.Time{}
	for {
		err := do()
		if err == nil && s.ctx.Err() == nil {
			return nil
		}
		s.mutex.Lock()
		if failing.IsZero() || s.worked.After(failing) {
			backoff, failing = backoffFirst, time.Now()
		}
		s.mutex.Unlock()
		switch {
		case s.ctx.Err() != nil:
			return context.Cause(s.ctx)
		case !errors.Is(err, errBroken):
			s.end(err)
			return err
		case time.Since(failing) >= s.options.Patience:
			err = fmt.Errorf("send: no data has reached the other host for %v: %w", s.options.Patience, err)
			s.end(err)
			return err
		}
		pause(s.ctx, backoff)
		backoff = min(2*backoff, backoffLast)
	}
}

// take returns ranges for a request of about this size, once there are any, or none once the transfer
// is over. As the end comes near, each connection gets its share.
func (s *Sender) take(size int64) (ranges []fileRange) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for s.ctx.Err() == nil {
		left := int64(0)
		for _, f := range s.files {
			left += f.left()
		}
		for most := min(size, max(left/int64(2*s.options.Streams), size/16, PieceSize)); most > 0 && len(ranges) < maxRanges; {
			r, some := s.next(most)
			if !some {
				break
			}
			ranges = append(ranges, r)
			most -= r.Size
		}
		if len(ranges) > 0 {
			s.underway++
			return ranges
		}
		s.changed.Wait()
	}
	return nil
}

// next returns a range of some file: of another than the last time, as the receiver's kernel lets
// only one write at a time into a file. What a broken connection had goes first.
func (s *Sender) next(most int64) (r fileRange, some bool) {
	most = max(most-most%PieceSize, PieceSize)
	if last := len(s.again) - 1; last >= 0 {
		rest := &s.again[last]
		r = *rest
		r.Size = min(r.Size, most)
		if rest.Offset, rest.Size = rest.Offset+r.Size, rest.Size-r.Size; rest.Size == 0 {
			s.again = s.again[:last]
		}
		return r, true
	}
	for range s.files {
		s.turn = (s.turn + 1) % len(s.files)
		if f := s.files[s.turn]; f.left() > 0 {
			r = fileRange{Name: f.name, Offset: f.begun, Size: min(f.left(), most), file: f}
			f.begun += r.Size
			return r, true
		}
	}
	return r, false
}

// done notes what became of a request.
func (s *Sender) done(ranges []fileRange, err error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.underway--
	if err != nil {
		s.again = append(s.again, ranges...)
	} else {
		s.worked = time.Now()
		for _, r := range ranges {
			s.arrived += r.Size
		}
	}
	s.changed.Broadcast()
}

// put sends ranges.
func (c *stream) put(ranges []fileRange) error {
	header, err := json.Marshal(ranges)
	if err != nil {
		return err
	}
	b := newBody(nil)
	b.limiter = c.limiter
	sum := startSum(string(header))
	b.next = func() (data []byte, err error) {
		if len(ranges) == 0 {
			return nil, io.EOF
		}
		r := &ranges[0]
		size := min(r.Size, PieceSize)
		if n, err := r.file.reader.ReadAt(c.packer.plain[headSize:headSize+size], r.Offset); int64(n) < size {
			if errors.Is(err, io.EOF) {
				return nil, fmt.Errorf("send: %s ends at %d, before the part to be sent", r.Name, r.Offset+int64(n))
			}
			return nil, fmt.Errorf("send: %s: %w", r.Name, err)
		}
		if r.Offset, r.Size = r.Offset+size, r.Size-size; r.Size == 0 {
			ranges = ranges[1:]
		}
		data, sum = c.packer.pack(size, sum)
		return data, nil
	}
	ranges = append([]fileRange(nil), ranges...)
	err = c.request(c.ctx, http.MethodPut, string(header), b)
	c.mutex.Lock()
	c.totals.Sent += b.written
	c.mutex.Unlock()
	if err == nil {
		c.link.there(b.written)
	}
	return err
}
