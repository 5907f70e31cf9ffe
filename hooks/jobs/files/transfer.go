package files

import (
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"runtime"

	"golang.org/x/sync/errgroup"
)

// transfer copies or checks the pieces of a file.
type transfer struct {
	name    name // of the file, for messages
	open    func() (*os.File, error)
	content *content // its extents get their checksums
}

// copyAll copies the data of files, in parallel, to where their contents say it lies in dir.
func copyAll(ctx context.Context, dir *os.Root, transfers []transfer) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, t := range transfers {
		at := t.content.Start
		for first := 0; first < len(t.content.Extents) && ctx.Err() == nil; {
			// Many small parts are as much work as one large one.
			extents, length := batch(t.content.Extents[first:])
			start := at
			group.Go(func() error {
				if err := t.copyPieces(ctx, dir, extents, start); err != nil {
					return fmt.Errorf("save %v: %w", t.name, err)
				}
				return nil
			})
			first, at = first+len(extents), at+length
		}
	}
	return group.Wait()
}

// batch returns the first extents, up to a piece's size of them.
func batch(extents []extent) (first []extent, length int64) {
	n := 0
	for n < len(extents) && (n == 0 || length+extents[n].Length <= pieceSize) {
		length += extents[n].Length
		n++
	}
	return extents[:n], length
}

func (t transfer) copyPieces(ctx context.Context, dir *os.Root, extents []extent, at int64) error {
	from, err := t.open()
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := dir.OpenFile(t.content.Data, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	buffer := make([]byte, bufferSize)
	for i := range extents {
		extents[i].CRC32C, err = copyPiece(ctx, io.NewOffsetWriter(to, at), from, extents[i], buffer)
		if err != nil {
			to.Close()
			return err
		}
		at += extents[i].Length
	}
	return to.Close()
}

func copyPiece(ctx context.Context, to io.Writer, from io.ReaderAt, e extent, buffer []byte) (crc uint32, err error) {
	for at, end := e.Offset, e.Offset+e.Length; at < end; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		part := buffer[:min(int64(len(buffer)), end-at)]
		if _, err := from.ReadAt(part, at); err != nil {
			return 0, readError(err)
		}
		crc = crc32.Update(crc, castagnoli(), part)
		if _, err := to.Write(part); err != nil {
			return 0, err
		}
		at += int64(len(part))
	}
	return crc, nil
}

// readError says what the end of a file means where more of it was there before.
func readError(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("it has become shorter: %w", io.ErrUnexpectedEOF)
	}
	return err
}

// verifyAll checks the data of all contents against their checksums.
func verifyAll(ctx context.Context, dir *os.Root, contents []content) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, c := range contents {
		at := c.Start
		for first := 0; first < len(c.Extents) && ctx.Err() == nil; {
			extents, length := batch(c.Extents[first:])
			start := at
			group.Go(func() error { return verifyPieces(ctx, dir, c.Data, extents, start) })
			first, at = first+len(extents), at+length
		}
	}
	return group.Wait()
}

func verifyPieces(ctx context.Context, dir *os.Root, data string, extents []extent, at int64) error {
	f, err := dir.Open(data)
	if err != nil {
		return fmt.Errorf("the content of the job's files: %w", err)
	}
	defer f.Close()
	buffer := make([]byte, bufferSize)
	for _, e := range extents {
		crc, err := copyPiece(ctx, io.Discard, f, extent{Offset: at, Length: e.Length}, buffer)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil && crc != e.CRC32C {
			err = fmt.Errorf("the checksum of the %d bytes at %d is %08x, not %08x", e.Length, at, crc, e.CRC32C)
		}
		if err != nil {
			return &DamagedError{Path: f.Name(), Err: err}
		}
		at += e.Length
	}
	return nil
}
