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

// transfer copies the data of a file.
type transfer struct {
	name    name // of the file, for messages
	open    func() (*os.File, error)
	content *content // its extents get their checksums
}

// run is a part of the data of one content: some of its extents, which follow each other.
type run struct {
	index   int // of the content
	extents []extent
	at      int64 // where the data begins
}

const (
	runsAtMost   = 200 // in one batch: many small files are worth one worker
	batchAtLeast = 4 << 20
)

// batches divides the data of contents among workers.
func batches(contents []*content) [][]run {
	var all [][]run
	var batch []run
	filled := int64(0)
	for i, c := range contents {
		at := c.Start
		for rest := c.Extents; len(rest) > 0; {
			n, length := 0, int64(0)
			for n < len(rest) && (n == 0 || length+rest[n].Length <= pieceSize) {
				length += rest[n].Length
				n++
			}
			batch = append(batch, run{index: i, extents: rest[:n], at: at})
			filled += length
			rest, at = rest[n:], at+length
			if filled >= batchAtLeast || len(batch) >= runsAtMost {
				all, batch, filled = append(all, batch), nil, 0
			}
		}
	}
	if len(batch) > 0 {
		all = append(all, batch)
	}
	return all
}

// inParallel calls do for each part of the contents' data, with a buffer.
func inParallel(ctx context.Context, contents []*content, do func(context.Context, run, []byte) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, batch := range batches(contents) {
		group.Go(func() error {
			buffer := make([]byte, bufferSize)
			for _, r := range batch {
				if err := do(ctx, r, buffer); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// copyAll copies the data of files to where their contents say it lies in dir.
func copyAll(ctx context.Context, dir *os.Root, transfers []transfer) error {
	var contents []*content
	for _, t := range transfers {
		contents = append(contents, t.content)
	}
	return inParallel(ctx, contents, func(ctx context.Context, r run, buffer []byte) error {
		t := transfers[r.index]
		if err := t.copy(ctx, dir, r, buffer); err != nil {
			return fmt.Errorf("save %v: %w", t.name, err)
		}
		return nil
	})
}

func (t transfer) copy(ctx context.Context, dir *os.Root, r run, buffer []byte) error {
	from, err := t.open()
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := dir.OpenFile(t.content.Data, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	at := r.at
	for i := range r.extents {
		r.extents[i].CRC32C, err = copyPiece(ctx, io.NewOffsetWriter(to, at), from, r.extents[i], buffer)
		if err != nil {
			to.Close()
			return err
		}
		at += r.extents[i].Length
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
func verifyAll(ctx context.Context, dir *os.Root, contents []*content) error {
	return inParallel(ctx, contents, func(ctx context.Context, r run, buffer []byte) error {
		return verify(ctx, dir, contents[r.index].Data, r, buffer)
	})
}

func verify(ctx context.Context, dir *os.Root, data string, r run, buffer []byte) error {
	f, err := dir.Open(data)
	if err != nil {
		return fmt.Errorf("the content of the job's files: %w", err)
	}
	defer f.Close()
	at := r.at
	for _, e := range r.extents {
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
