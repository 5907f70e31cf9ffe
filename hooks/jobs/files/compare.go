package files

import (
	"bytes"
	"context"
	"io"
	"os"
	"sort"
)

// saved reads a file as it was at the checkpoint, with its holes as zeros.
type saved struct {
	data    *os.File // nil if all is a hole
	size    int64
	extents []extent
	starts  []int64 // where each extent's data is
}

func openSaved(dir *os.Root, c content, size int64) (*saved, error) {
	s := &saved{size: size, extents: c.Extents}
	at := c.Start
	for _, e := range c.Extents {
		s.starts = append(s.starts, at)
		at += e.Length
	}
	if c.Data == "" {
		return s, nil
	}
	var err error
	s.data, err = dir.Open(c.Data)
	return s, err
}

func (s *saved) Close() error {
	if s.data == nil {
		return nil
	}
	return s.data.Close()
}

// ReadAt reads from the file as it was. What lies behind its end is zero.
func (s *saved) ReadAt(p []byte, offset int64) (int, error) {
	clear(p)
	end := offset + int64(len(p))
	first := sort.Search(len(s.extents), func(i int) bool { return s.extents[i].Offset+s.extents[i].Length > offset })
	for i := first; i < len(s.extents) && s.extents[i].Offset < end; i++ {
		e := s.extents[i]
		from, to := max(offset, e.Offset), min(end, e.Offset+e.Length)
		if _, err := s.data.ReadAt(p[from-offset:to-offset], s.starts[i]+from-e.Offset); err != nil {
			return 0, readError(err)
		}
	}
	return len(p), nil
}

// likeness says how a file of now compares with the one of the checkpoint.
type likeness int

const (
	different likeness = iota
	equal
	// blank has nothing but zeros, or no content at all.
	blank
)

// compare compares a file of now with the one of the checkpoint.
func compare(ctx context.Context, now *os.File, nowSize int64, s *saved) (likeness, error) {
	if nowSize == 0 && s.size > 0 {
		return blank, nil
	}
	if nowSize != s.size {
		return different, nil
	}
	there, err := dataOf(now, nowSize)
	if err != nil {
		return different, err
	}
	var then []span
	for _, e := range s.extents {
		then = append(then, span{e.Offset, e.Offset + e.Length})
	}
	same, onlyZeros := true, true
	a, b := make([]byte, bufferSize), make([]byte, bufferSize)
	for _, part := range union(there, then) {
		for at := part.start; at < part.end; at += bufferSize {
			if err := ctx.Err(); err != nil {
				return different, err
			}
			n := min(bufferSize, part.end-at)
			a, b := a[:n], b[:n]
			if _, err := now.ReadAt(a, at); err != nil {
				return different, readError(err)
			}
			if _, err := s.ReadAt(b, at); err != nil {
				return different, err
			}
			same, onlyZeros = same && bytes.Equal(a, b), onlyZeros && isZero(a)
			if !same && !onlyZeros {
				return different, nil
			}
		}
	}
	if !same {
		return blank, nil
	}
	return equal, nil
}

func isZero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

// copySpans copies parts of a file to another one, which gets them at the place less start.
func copySpans(ctx context.Context, to *os.File, from *os.File, spans []span, start int64) error {
	for _, part := range spans {
		for at := part.start; at < part.end; at += pieceSize {
			if err := ctx.Err(); err != nil {
				return err
			}
			n := min(pieceSize, part.end-at)
			if _, err := to.Seek(at-start, io.SeekStart); err != nil {
				return err
			}
			if _, err := from.Seek(at, io.SeekStart); err != nil {
				return err
			}
			if _, err := io.CopyN(to, from, n); err != nil { // this is copy_file_range where it can be
				return readError(err)
			}
		}
	}
	return nil
}
