package pages

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"cucriu/internal/kit/proc"
)

// Reader reads the memory of one process from its files. It is a [Source].
type Reader struct {
	files []*os.File // the index, then the shards
	index index
}

// Open opens the files that a listing names in a directory. It refuses files that are damaged or are
// not the ones that were written. Chunks are not checked here, but when they are read.
func Open(dir string, pid int, l *Listing, bases ...string) (*Reader, error) {
	files, err := openFiles(append([]string{dir}, bases...), pid, l)
	if err != nil {
		return nil, err
	}
	return newReader(files, pid, l)
}

// newReader makes a reader of open files, the index first. If it fails, it closes them.
func newReader(files []*os.File, pid int, l *Listing) (*Reader, error) {
	r := &Reader{files: files}
	if err := r.readIndex(pid, l); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (r *Reader) readIndex(pid int, l *Listing) error {
	if err := l.Validate(); err != nil {
		return err
	}
	sizes := l.Sizes()
	if len(r.files) != len(sizes) {
		return fmt.Errorf("%d files of pages, but %d were written", len(r.files), len(sizes))
	}
	for i, f := range r.files {
		want := l.indexHeader(pid)
		if i > 0 {
			want = l.shardHeader(pid, i-1)
		}
		if err := checkFile(f, sizes[i], want); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(f.Name()), err)
		}
	}
	file := make([]byte, l.IndexBytes)
	if _, err := r.files[0].ReadAt(file, 0); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(r.files[0].Name()), err)
	}
	r.index = file[headerSize:]
	err := r.index.check(l.ShardBytes)
	if sum := checksum(file); sum != l.IndexChecksum {
		err = errors.New("checksum mismatch")
	}
	if err != nil {
		return fmt.Errorf("%s is damaged: %w", filepath.Base(r.files[0].Name()), err)
	}
	return nil
}

// checkFile refuses a file that is not the one that was written.
func checkFile(f *os.File, size int64, want []byte) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("is not a regular file")
	}
	if info.Size() != size {
		return fmt.Errorf("is damaged: it has %d bytes, but %d were written", info.Size(), size)
	}
	got := make([]byte, headerSize)
	if _, err := f.ReadAt(got, 0); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return errors.New("is damaged, or belongs to another process or image")
	}
	return nil
}

// Ranges returns the memory that the chunks cover.
func (r *Reader) Ranges() []proc.Range { return r.index.ranges() }

// Chunks returns the number of chunks.
func (r *Reader) Chunks() int { return r.index.len() }

// Get reads chunk i. The data of the chunk is in buffer.
func (r *Reader) Get(i int, buffer []byte) (Chunk, error) {
	at := r.index.at(i)
	chunk := at.chunk()
	if chunk.Codec == Zero {
		return chunk, nil
	}
	f := r.files[1+at.shard]
	chunk.Data = buffer[:at.stored]
	if _, err := f.ReadAt(chunk.Data, at.offset); err != nil {
		return chunk, fmt.Errorf("read %d bytes at %d of %s: %w", at.stored, at.offset, filepath.Base(f.Name()), err)
	}
	return chunk, nil
}

// Split returns the chunks that begin in a range, and the others.
func (r *Reader) Split(at proc.Range) (inside, outside Source) {
	first, end := r.chunksIn(at)
	return part{r, end - first, func(i int) int { return first + i }}, part{r, r.Chunks() - (end - first), func(i int) int {
		if i < first {
			return i
		}
		return i + end - first
	}}
}

// part is a part of the chunks of a reader.
type part struct {
	*Reader
	chunks int
	number func(i int) int // in the reader
}

func (p part) Chunks() int { return p.chunks }

func (p part) Get(i int, buffer []byte) (Chunk, error) { return p.Reader.Get(p.number(i), buffer) }

// Files returns the open files: the index, then the shards. As long as a process has them open, the
// pages can be reached, even after their names are gone.
func (r *Reader) Files() []*os.File { return r.files }

// Verify reads all chunks, and fails if one is damaged. It calls read with how many bytes it has just
// read, from several goroutines. It uses at least one worker.
func (r *Reader) Verify(ctx context.Context, workers int, read func(bytes int)) error {
	return decodeAll(ctx, r, workers, func(i int, chunk Chunk, _ []byte, err error) error {
		if err != nil {
			at := r.index.at(i)
			return fmt.Errorf("%s at %d: %w", filepath.Base(r.files[1+at.shard].Name()), at.offset, err)
		}
		read(len(chunk.Data))
		return nil
	})
}

// Close closes the files.
func (r *Reader) Close() error { return closeAll(r.files) }
