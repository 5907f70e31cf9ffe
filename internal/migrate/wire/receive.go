package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"cucriu/internal/kit/failpoint"
)

const (
	// maxRequests is how many requests a receiver serves at once: more than a sender makes, because it
	// may not be known yet that some of them broke.
	maxRequests = 4 * maxStreams
	// maxSizes is the size of the largest list of files, in bytes.
	maxSizes = 64 << 20
	// lastWords is how long a receiver that has failed reads on, so that the reason gets there.
	lastWords = 5 * time.Second
)

// ReceiveOptions says what a receiver takes.
type ReceiveOptions struct {
	Dir      *os.Root // where the files are made; none of them may be there yet
	MaxBytes int64    // that all files may have together
	MaxFiles int
}

// Receiver receives files. It is an [http.Handler] for the requests of one sender.
type Receiver struct {
	ReceiveOptions
	server    http.Server
	addresses []string
	unpackers sync.Pool

	mutex    sync.Mutex
	idle     *sync.Cond
	requests int // under way
	files    map[string]pieces
	received int64 // bytes of the files
	complete bool
	failure  error
	over     bool
}

// pieces are those of a file that are there: the size of each, by its offset.
type pieces map[int64]int64

func newReceiver(log *slog.Logger, o ReceiveOptions) *Receiver {
	r := &Receiver{ReceiveOptions: o, files: make(map[string]pieces)}
	r.unpackers.New = func() any { return &unpacker{read: make([]byte, PieceSize)} }
	r.idle = sync.NewCond(&r.mutex)
	r.server = http.Server{Handler: r, ReadHeaderTimeout: handshakeTimeout, MaxHeaderBytes: 64 << 10, ErrorLog: (&refusals{log: log}).logger()}
	return r
}

// Finish ends the transfer: nothing more is written. It returns nil if all files are complete.
func (r *Receiver) Finish() error {
	r.mutex.Lock()
	r.over = true
	r.mutex.Unlock()
	r.server.Close()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for r.requests > 0 {
		r.idle.Wait()
	}
	switch {
	case r.failure != nil:
		return fmt.Errorf("receive: %w", r.failure)
	case !r.complete:
		return errors.New("receive: the sender has not finished")
	}
	return nil
}

// ServeHTTP implements [http.Handler]. A connection that breaks does no harm to the transfer: the
// sender makes another. Any other error ends it.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	err := r.begin()
	if err == nil {
		err = r.serve(q)
	}
	err = r.done(err)
	switch {
	case errors.Is(err, errBroken):
		panic(http.ErrAbortHandler) // closes the connection
	case err != nil:
		// The sender would not hear it if the connection were closed before it has sent everything.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(failpoint.Patience(lastWords)))
		_, _ = io.Copy(io.Discard, q.Body)
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

func (r *Receiver) begin() error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.requests++
	if r.requests > maxRequests {
		return fmt.Errorf("more than %d requests at once", maxRequests)
	}
	if r.over {
		return fmt.Errorf("%w: the transfer is over", errBroken)
	}
	return r.failure
}

func (r *Receiver) done(err error) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.requests--; r.requests == 0 {
		r.idle.Broadcast()
	}
	if err != nil && !errors.Is(err, errBroken) && r.failure == nil {
		r.failure = err
	}
	return err
}

func (r *Receiver) serve(q *http.Request) error {
	switch q.Method {
	case http.MethodGet: // is somebody there?
		return nil
	case http.MethodPut:
		return r.put(q)
	case http.MethodPost:
		return r.finish(q)
	}
	return fmt.Errorf("unknown method %.40q", q.Method)
}

// put takes the pieces of ranges. Each is checked before it is written.
func (r *Receiver) put(q *http.Request) error {
	header := q.Header.Get(rangesHeader)
	var ranges []fileRange
	err := json.Unmarshal([]byte(header), &ranges)
	if err == nil && len(ranges) > maxRanges {
		err = fmt.Errorf("%d of at most %d", len(ranges), maxRanges)
	}
	if err != nil {
		return fmt.Errorf("invalid ranges: %w", err)
	}
	u := r.unpackers.Get().(*unpacker)
	defer r.unpackers.Put(u)
	u.sum = startSum(header)
	for _, part := range ranges {
		f, err := r.open(part)
		if err == nil {
			err = errors.Join(r.take(f, u, q.Body, part), f.Close())
		}
		if err != nil {
			return err
		}
	}
	switch _, err := io.ReadFull(q.Body, u.head[:1]); { // only its end shows that all of it came
	case err == nil:
		return errors.New("more data was received than announced")
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	return nil
}

// open opens the file of a range.
func (r *Receiver) open(part fileRange) (*os.File, error) {
	if part.Offset < 0 || part.Offset%PieceSize != 0 || part.Size <= 0 || part.Offset > r.MaxBytes || part.Size > r.MaxBytes-part.Offset {
		return nil, fmt.Errorf("%.80q: invalid range, %d bytes at %d; %d bytes are allowed", part.Name, part.Size, part.Offset, r.MaxBytes)
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.files[part.Name] == nil {
		return r.create(part.Name)
	}
	return r.Dir.OpenFile(part.Name, os.O_WRONLY|syscall.O_NOFOLLOW, 0)
}

// create creates a file that was not there. The caller holds the mutex.
func (r *Receiver) create(name string) (*os.File, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if len(r.files) >= r.MaxFiles {
		return nil, fmt.Errorf("more than %d files", r.MaxFiles)
	}
	f, err := r.Dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err == nil {
		r.files[name] = make(pieces)
	}
	return f, err
}

// take takes the pieces of a range.
func (r *Receiver) take(f *os.File, u *unpacker, from io.Reader, part fileRange) error {
	for at, end := part.Offset, part.Offset+part.Size; at < end; at += PieceSize {
		size := min(end-at, PieceSize)
		content, err := u.next(from, size)
		if err != nil {
			return err
		}
		if len(content) > 0 {
			if _, err := f.WriteAt(content, at); err != nil {
				return err // it names the file
			}
		}
		if err := r.note(part.Name, at, size); err != nil {
			return err
		}
	}
	return nil
}

// note notes that a piece is there.
func (r *Receiver) note(name string, offset, size int64) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.received += size - r.files[name][offset]
	if r.received > r.MaxBytes {
		return fmt.Errorf("%s: more than %d bytes", name, r.MaxBytes)
	}
	r.files[name][offset] = size
	return nil
}

// finish ends the transfer if everything is there that was sent.
func (r *Receiver) finish(q *http.Request) error {
	data, err := io.ReadAll(io.LimitReader(q.Body, maxSizes))
	if err != nil {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	var sizes map[string]int64
	if err := json.Unmarshal(data, &sizes); err != nil {
		return fmt.Errorf("invalid list of files: %w", err)
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.complete {
		return nil // the sender has not heard it
	}
	for name := range r.files {
		if _, listed := sizes[name]; !listed {
			return fmt.Errorf("%s was received, but is not listed", name)
		}
	}
	for name, size := range sizes {
		if err := r.check(name, size); err != nil {
			return err
		}
	}
	r.complete = true
	return nil
}

// check finds out whether all of a file is there, and gives it its size: zeros at the end are not
// written. The caller holds the mutex.
func (r *Receiver) check(name string, size int64) (err error) {
	there, known := r.files[name]
	var missing, n int64
	for at := int64(0); at < size; at += PieceSize {
		if want := min(size-at, PieceSize); there[at] != want {
			missing += want
		}
		n++
	}
	if missing > 0 || n != int64(len(there)) || size < 0 {
		return fmt.Errorf("%.80q: %d of %d bytes are missing, and %d of %d pieces were received", name, missing, size, len(there), n)
	}
	var f *os.File
	if known {
		f, err = r.Dir.OpenFile(name, os.O_WRONLY|syscall.O_NOFOLLOW, 0)
	} else {
		f, err = r.create(name)
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}
