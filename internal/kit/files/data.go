package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"os"
	"runtime"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"cucriu/internal/kit/durable"
)

const (
	// pieceSize is the largest part with one checksum: parts are copied and checked in parallel.
	pieceSize = 64 << 20 // bytes
	// smallHole is not worth a part of its own.
	smallHole = 64 << 10 // bytes
	// bufferSize is how much is read at once.
	bufferSize = 1 << 20 // bytes
	// endingSize is how much of a file's end is compared.
	endingSize = 4096 // bytes
)

// dataOf returns the parts of a file between two offsets that are not holes, in pieces that have one
// checksum each.
func dataOf(f *os.File, from, to int64) ([]extent, error) {
	var all []extent
	for at := from; at < to; {
		start, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // the rest is a hole
		}
		end := to
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) { // the file system knows no holes
			start, err = at, nil
		} else if err == nil {
			end, err = unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
		}
		if err != nil {
			return nil, fmt.Errorf("look for holes: %w", err)
		}
		start, end = min(start, to), min(end, to)
		if start >= end {
			break
		}
		if n := len(all); n > 0 && start-all[n-1].end() < smallHole {
			all[n-1].Length = end - all[n-1].Offset
		} else {
			all = append(all, extent{Offset: start, Length: end - start})
		}
		at = end
	}
	return inPieces(all), nil
}

func (e extent) end() int64 { return e.Offset + e.Length }

// inPieces divides parts of a file into those that have one checksum each.
func inPieces(parts []extent) (pieces []extent) {
	for _, part := range parts {
		for at := part.Offset; at < part.end(); at += pieceSize {
			pieces = append(pieces, extent{Offset: at, Length: min(pieceSize, part.end()-at)})
		}
	}
	return pieces
}

func (c *content) length() (sum int64) {
	for _, e := range c.Extents {
		sum += e.Length
	}
	return sum
}

// pieces goes through the parts of a content, with the offset of each in the checkpoint's file.
func (c *content) pieces() iter.Seq2[int64, *extent] {
	return func(yield func(int64, *extent) bool) {
		at := c.Start
		for i := range c.Extents {
			if !yield(at, &c.Extents[i]) {
				return
			}
			at += c.Extents[i].Length
		}
	}
}

// inParallel calls do for each part of the contents, with the index of the content, the offset of
// the part in the checkpoint's file, and a buffer.
func inParallel(ctx context.Context, contents []*content, do func(i int, at int64, e *extent, buffer []byte) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, c := range contents {
		for at, e := range c.pieces() {
			group.Go(func() error {
				if err := ctx.Err(); err != nil {
					return err
				}
				return do(i, at, e, make([]byte, min(bufferSize, e.Length)))
			})
		}
	}
	return group.Wait()
}

// transfer is a content that is to be saved.
type transfer struct {
	name    name     // of the file, for messages
	by      string   // who writes it, for messages
	content *content // its extents get their checksums
	open    func() (source, error)
}

// source is what a file is read from: its offset is not used, which may be the job's.
type source interface {
	io.ReaderAt
	io.Closer
}

func bytesOf(transfers []transfer) (sum int64) {
	for _, t := range transfers {
		sum += t.content.length()
	}
	return sum
}

// copyAll copies the data of files to where their contents say it lies in dir.
func copyAll(ctx context.Context, dir *os.Root, transfers []transfer, progress *progress) error {
	var contents []*content
	for _, t := range transfers {
		contents = append(contents, t.content)
	}
	return inParallel(ctx, contents, func(i int, at int64, e *extent, buffer []byte) error {
		t := transfers[i]
		progress.reach(t.name)
		from, err := t.open()
		if err != nil {
			return fmt.Errorf("%v: %w", t.name, err)
		}
		defer from.Close()
		to, err := dir.OpenFile(t.content.Data, os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		read := progress.reading(t.name, io.NewSectionReader(from, e.Offset, e.Length))
		e.CRC32C, err = copyPiece(io.NewOffsetWriter(to, at), read, e.Length, buffer)
		if err = errors.Join(err, to.Close()); err != nil {
			return fmt.Errorf("%v: %w", t.name, err)
		}
		return nil
	})
}

// copyPiece copies a number of bytes, and returns their checksum.
func copyPiece(to io.Writer, from io.Reader, bytes int64, buffer []byte) (uint32, error) {
	crc := crc32.New(durable.Castagnoli)
	n, err := io.CopyBuffer(io.MultiWriter(crc, to), from, buffer)
	if err == nil && n != bytes {
		err = fmt.Errorf("only %d of %d bytes are left: %w", n, bytes, io.ErrUnexpectedEOF)
	}
	return crc.Sum32(), err
}

// verifyAll checks the data of all contents against their checksums.
func verifyAll(ctx context.Context, dir *os.Root, contents []*content) error {
	return inParallel(ctx, contents, func(i int, at int64, e *extent, buffer []byte) error {
		f, err := dir.Open(contents[i].Data)
		if err != nil {
			return fmt.Errorf("the content of the job's files: %w", err)
		}
		defer f.Close()
		crc, err := copyPiece(io.Discard, io.NewSectionReader(f, at, e.Length), e.Length, buffer)
		if err == nil && crc != e.CRC32C {
			err = fmt.Errorf("the checksum of the %d bytes at %d is %08x, not %08x", e.Length, at, crc, e.CRC32C)
		}
		if err != nil && durable.HostRemedy(err) == "" {
			return &DamagedError{Path: f.Name(), Err: err}
		}
		return err
	})
}

// writeTo writes a content to a file of its size that is all a hole. It calls written after each part.
func (c *content) writeTo(ctx context.Context, to io.WriterAt, data io.ReaderAt, written func() error) error {
	for at, e := range c.pieces() {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.Copy(io.NewOffsetWriter(to, e.Offset), io.NewSectionReader(data, at, e.Length))
		if err == nil && n != e.Length {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("%d of %d bytes were written: %w", n, e.Length, err)
		}
		if err := written(); err != nil {
			return err
		}
	}
	return nil
}

// isIn reports whether a file of this size has a content and nothing else but zeros.
func (c *content) isIn(ctx context.Context, f *os.File, size int64, data io.ReaderAt) (bool, error) {
	end := int64(0)
	for at, e := range c.pieces() {
		same, err := isZero(ctx, f, end, e.Offset)
		if same && err == nil {
			same, err = isEqual(ctx, io.NewSectionReader(f, e.Offset, e.Length), io.NewSectionReader(data, at, e.Length), e.Length)
		}
		if !same || err != nil {
			return false, err
		}
		end = e.end()
	}
	return isZero(ctx, f, end, size)
}

// isZero reports whether a file has only zeros between two offsets.
func isZero(ctx context.Context, f *os.File, from, to int64) (bool, error) {
	parts, err := dataOf(f, from, to)
	for _, part := range parts {
		same, err := isEqual(ctx, io.NewSectionReader(f, part.Offset, part.Length), zeros{}, part.Length)
		if !same || err != nil {
			return false, err
		}
	}
	return err == nil, err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// isEqual compares the next bytes of two readers.
func isEqual(ctx context.Context, a, b io.Reader, n int64) (bool, error) {
	size := min(n, bufferSize)
	x, y := make([]byte, size), make([]byte, size)
	for ; n > 0; n -= size {
		size = min(n, size)
		_, errA := io.ReadFull(a, x[:size])
		_, errB := io.ReadFull(b, y[:size])
		if err := errors.Join(ctx.Err(), errA, errB); err != nil {
			return false, err
		}
		if !bytes.Equal(x[:size], y[:size]) {
			return false, nil
		}
	}
	return true, nil
}

// copyData copies what is between two offsets of a file to another one, from its offset at on,
// without the holes.
func copyData(ctx context.Context, to, from *os.File, start, end, at int64) error {
	parts, err := dataOf(from, start, end)
	if err != nil {
		return err
	}
	for _, part := range parts {
		_, err := to.Seek(part.Offset-start+at, io.SeekStart)
		if err == nil {
			_, err = from.Seek(part.Offset, io.SeekStart)
		}
		if err == nil {
			_, err = io.CopyN(to, from, part.Length) // this is copy_file_range where it can be
		}
		if err := errors.Join(ctx.Err(), err); err != nil {
			return err
		}
	}
	return nil
}

// endingOf describes the end of a file's first size bytes.
func endingOf(f io.ReaderAt, size int64) (*ending, error) {
	data := make([]byte, min(size, endingSize))
	if _, err := f.ReadAt(data, size-int64(len(data))); err != nil {
		return nil, err
	}
	return &ending{Length: int64(len(data)), CRC32C: crc32.Checksum(data, durable.Castagnoli)}, nil
}
