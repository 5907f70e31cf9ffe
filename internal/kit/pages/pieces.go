package pages

import (
	"encoding/binary"
	"math"
	"os"

	"cucriu/internal/kit/proc"
)

// Piece says where a piece of memory is that is stored as it is. It is struct piece of the library in a job.
type Piece struct {
	Offset uint64 // in the range that was asked for
	At     uint64 // in the file
	Size   uint32 // bytes
	File   uint32 // which of the files
}

// Pieces returns where the memory in a range is, in the order of the addresses, and the files. What is in no piece is
// 0. ok is false if some of it is stored otherwise than as it is.
func (r *Reader) Pieces(at proc.Range) (pieces []Piece, files []*os.File, ok bool) {
	first, end := r.chunksIn(at)
	for i := first; i < end; i++ {
		chunk := r.index.at(i)
		p := Piece{Offset: chunk.address - at.Start, At: uint64(chunk.offset), Size: chunk.size, File: chunk.shard}
		if chunk.codec == Zero {
			continue
		}
		if chunk.codec != Raw || chunk.stored != chunk.size {
			return nil, nil, false
		}
		if last := len(pieces) - 1; last >= 0 && pieces[last].isBefore(p) {
			pieces[last].Size += p.Size
			continue
		}
		pieces = append(pieces, p)
	}
	return pieces, r.files[1:], true
}

// isBefore reports whether a piece ends where another begins, in the memory and in the file.
func (p Piece) isBefore(next Piece) bool {
	return p.File == next.File && p.Offset+uint64(p.Size) == next.Offset && p.At+uint64(p.Size) == next.At &&
		p.Size <= math.MaxUint32-next.Size
}

// List returns the pieces as the library reads them.
func List(pieces []Piece) ([]byte, error) {
	return binary.Append(nil, binary.LittleEndian, pieces)
}

// Memory returns how much memory a process takes for what is not 0, at least: a library in it may read what is at a
// range from the files.
func (r *Reader) Memory(at proc.Range) uint64 {
	var sum uint64
	first, end := 0, 0
	if _, _, ok := r.Pieces(at); ok {
		first, end = r.chunksIn(at)
	}
	for i := range r.Chunks() {
		if chunk := r.index.at(i); chunk.codec != Zero && (i < first || i >= end) {
			sum += uint64(chunk.size)
		}
	}
	return sum
}
