package files

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// pieceSize is the largest part with one checksum: pieces are copied and checked in
	// parallel.
	pieceSize = 64 << 20 // bytes
	// smallHole is not worth a part of its own.
	smallHole = 64 << 10 // bytes
	// bufferSize is how much is read at once.
	bufferSize = 1 << 20 // bytes
)

// span is a part of a file, in bytes.
type span struct{ start, end int64 }

// dataOf returns the parts of a file's first size bytes that are not holes.
func dataOf(f *os.File, size int64) ([]span, error) {
	var spans []span
	for at := int64(0); at < size; {
		start, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // the rest is a hole
		}
		end := size
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) { // the file system knows no holes
			start, err = at, nil
		} else if err == nil {
			end, err = unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
		}
		if err != nil {
			return nil, fmt.Errorf("look for holes: %w", err)
		}
		start, end = min(start, size), min(end, size)
		if start >= end {
			break
		}
		if n := len(spans); n > 0 && start-spans[n-1].end < smallHole {
			spans[n-1].end = end
		} else {
			spans = append(spans, span{start, end})
		}
		at = end
	}
	return spans, nil
}

// extentsOf returns the parts of a file that are not holes, in pieces.
func extentsOf(f *os.File, size int64) ([]extent, error) {
	spans, err := dataOf(f, size)
	return inPieces(spans), err
}

func inPieces(spans []span) []extent {
	var extents []extent
	for _, s := range spans {
		for at := s.start; at < s.end; at += pieceSize {
			extents = append(extents, extent{Offset: at, Length: min(pieceSize, s.end-at)})
		}
	}
	return extents
}

func total(spans []span) int64 {
	sum := int64(0)
	for _, s := range spans {
		sum += s.end - s.start
	}
	return sum
}

func (c content) spans() []span {
	spans := make([]span, len(c.Extents))
	for i, e := range c.Extents {
		spans[i] = span{e.Offset, e.Offset + e.Length}
	}
	return spans
}

func (c content) length() int64 { return total(c.spans()) }

// union returns the bytes that are in one of two ascending lists.
func union(a, b []span) []span {
	var all []span
	for len(a) > 0 || len(b) > 0 {
		if len(b) == 0 || len(a) > 0 && a[0].start <= b[0].start {
			all, a = appendSpan(all, a[0]), a[1:]
		} else {
			all, b = appendSpan(all, b[0]), b[1:]
		}
	}
	return all
}

func appendSpan(spans []span, next span) []span {
	if n := len(spans); n > 0 && next.start <= spans[n-1].end {
		spans[n-1].end = max(spans[n-1].end, next.end)
		return spans
	}
	return append(spans, next)
}
