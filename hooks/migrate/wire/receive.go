package wire

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	// maxConnections is how many connections a receiver serves at once. It is more than a
	// sender has, because those that broke may not be known to have done so yet.
	maxConnections = 4 * maxStreams
	// maxExtents bounds the memory for what is there of files that are not complete.
	maxExtents = 1 << 18
)

// errOver says that a receiver was told to finish.
var errOver = errors.New("the transfer is over")

// ReceiveOptions says what a receiver takes.
type ReceiveOptions struct {
	Dir      *os.Root // where the files are made; none of them may be there yet
	MaxBytes int64    // that all files may have together
	MaxFiles int
	// Progress is told how many bytes of the files are there. It must not wait. May be nil.
	Progress func(received int64)
}

// Receiver receives files over several connections.
type Receiver struct {
	options ReceiveOptions
	// write writes a part of a file. The tests replace it.
	write func(f *os.File, data []byte, offset int64) (int, error)

	received atomic.Int64
	extents  atomic.Int64

	mutex       sync.Mutex
	files       map[uint32]*file
	connections int
	handling    int        // frames
	idle        *sync.Cond // no frames

	ended   sync.Once
	over    chan struct{} // closed when the transfer is complete, or failed
	failure error         // once over is closed: nil if complete

	report sync.Mutex // one call of Progress at a time
}

// NewReceiver makes a receiver.
func NewReceiver(o ReceiveOptions) *Receiver {
	r := &Receiver{
		options: o,
		write:   (*os.File).WriteAt,
		files:   make(map[uint32]*file),
		over:    make(chan struct{}),
	}
	r.idle = sync.NewCond(&r.mutex)
	return r
}

// Wait waits until the sender has said that everything was sent, and all of it is there. Finish
// comes before the files are used.
func (r *Receiver) Wait(ctx context.Context) error {
	select {
	case <-r.over:
		return r.failure
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Finish ends the transfer: nothing more is written, and the files are closed. It returns nil if
// all files are complete. The calls of Serve end once the sender has been told.
func (r *Receiver) Finish() error {
	r.end(errOver)
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for r.handling > 0 {
		r.idle.Wait()
	}
	err := r.failure
	if errors.Is(err, errOver) {
		err = errors.New("receive: the sender has not finished")
		if missing := r.check(); missing != nil {
			err = fmt.Errorf("%w: %w", err, missing)
		}
	}
	for _, f := range r.files {
		err = errors.Join(err, f.abandon())
	}
	return err
}

// end ends the transfer, for the first reason only.
func (r *Receiver) end(failure error) {
	r.ended.Do(func() {
		r.failure = failure
		close(r.over)
	})
}

// state reports whether the transfer is over, and whether it has failed.
func (r *Receiver) state() (over bool, failure error) {
	select {
	case <-r.over:
		return true, r.failure
	default:
		return false, nil
	}
}

// enter makes room for a connection.
func (r *Receiver) enter() error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.connections == maxConnections {
		return fmt.Errorf("receive: more than %d connections", maxConnections)
	}
	r.connections++
	return nil
}

func (r *Receiver) leave() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.connections--
}

// begin reports whether a frame may be handled. If so, the caller says when that is done.
func (r *Receiver) begin() bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if over, _ := r.state(); over {
		return false
	}
	r.handling++
	return true
}

func (r *Receiver) done() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.handling--
	if r.handling == 0 {
		r.idle.Broadcast()
	}
}

// name makes a file, unless another connection has named it already.
func (r *Receiver) name(number uint32, name string) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if f, known := r.files[number]; known {
		if f.name != name {
			return fmt.Errorf("file %d is %s, and then %.80q", number, f.name, name)
		}
		return nil
	}
	if len(r.files) >= r.options.MaxFiles {
		return fmt.Errorf("more than %d files", r.options.MaxFiles)
	}
	f, err := create(r.options.Dir, name)
	if err != nil {
		return err
	}
	r.files[number] = f
	return nil
}

func (r *Receiver) file(number uint32) (*file, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	f, known := r.files[number]
	if !known {
		return nil, fmt.Errorf("file %d has no name", number)
	}
	return f, nil
}

// chunk writes a chunk; no content is zeros.
func (r *Receiver) chunk(fr *frame, content []byte) error {
	f, err := r.file(fr.file)
	if err != nil {
		return err
	}
	part := extent{fr.offset, fr.offset + int64(fr.size)}
	handle, missing, err := f.begin(part)
	if err != nil || handle == nil {
		return err
	}
	if part.end > r.options.MaxBytes || r.received.Load()+missing > r.options.MaxBytes {
		return fmt.Errorf("%s: more than %d bytes", f.name, r.options.MaxBytes)
	}
	if len(content) > 0 {
		if _, err := r.write(handle, content, part.start); err != nil {
			return err // it names the file
		}
	}
	added, more, err := f.end(part)
	if err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	if r.extents.Add(int64(more)) > maxExtents {
		return fmt.Errorf("%s: too many separate parts", f.name)
	}
	r.received.Add(added)
	r.progress()
	return nil
}

func (r *Receiver) progress() {
	if r.options.Progress == nil {
		return
	}
	r.report.Lock()
	defer r.report.Unlock()
	r.options.Progress(r.received.Load())
}

// closed notes that a file has this size.
func (r *Receiver) closed(fr *frame) error {
	f, err := r.file(fr.file)
	if err != nil {
		return err
	}
	if fr.offset > r.options.MaxBytes {
		return fmt.Errorf("%s: more than %d bytes", f.name, r.options.MaxBytes)
	}
	return f.close(fr.offset)
}

// finish ends the transfer if everything is there that was sent.
func (r *Receiver) finish(fr *frame) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if err := r.check(); err != nil {
		return err
	}
	var bytes int64
	for _, f := range r.files {
		bytes += f.size
	}
	if files := len(r.files); files != int(fr.size) || bytes != fr.offset {
		return fmt.Errorf("%d files with %d bytes came, and %d with %d were sent", files, bytes, fr.size, fr.offset)
	}
	r.end(nil)
	return nil
}

// check returns what is missing, of a few files. The caller holds the mutex.
func (r *Receiver) check() error {
	var missing []string
	for _, f := range r.files {
		if err := f.check(); err != nil {
			missing = append(missing, err.Error())
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	const shown = 5
	if n := len(missing); n > shown {
		missing = append(missing[:shown], fmt.Sprintf("and %d more files", n-shown))
	}
	return errors.New(strings.Join(missing, "; "))
}
