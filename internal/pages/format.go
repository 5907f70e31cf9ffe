package pages

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"cucriu/internal/proc"
)

// Every file begins with a header that says what the file belongs to. In the index, the
// records follow the header in the order of the addresses. In a shard, the chunks follow
// the header in the order in which they were written. All numbers are little-endian.
const (
	headerSize = 4096 // one page
	recordSize = 32
	magic      = "CUCRIUPG"
	version    = 1
	// rewrittenVersion is that of an index whose shards were not all written together with it.
	rewrittenVersion = 2
	indexShard       = math.MaxUint32 // shard number in the header of the index
)

// header returns a header: magic, version (4 bytes), shard (4), pid (8), id (16), zeros.
func header(id string, pid int, shard uint32) []byte {
	h := make([]byte, headerSize)
	copy(h, magic)
	binary.LittleEndian.PutUint32(h[8:], version)
	binary.LittleEndian.PutUint32(h[12:], shard)
	binary.LittleEndian.PutUint64(h[16:], uint64(pid))
	copy(h[24:40], id)
	return h
}

// indexHeader returns the header of the index of a process.
func (l *Listing) indexHeader(pid int) []byte {
	h := header(l.ID, pid, indexShard)
	if len(l.Origins) > 0 {
		binary.LittleEndian.PutUint32(h[8:], rewrittenVersion)
	}
	return h
}

// shardHeader returns the header of a shard of a process.
func (l *Listing) shardHeader(pid, shard int) []byte {
	o := l.origin(pid, shard)
	return header(o.ID, o.PID, uint32(o.Shard))
}

// record says where a chunk is.
type record struct {
	chunk  Chunk // without data
	stored uint32
	shard  uint32
	offset int64
}

// append appends the stored form: address (8 bytes), size (4), stored bytes (4), CRC-32C
// (4), shard (2), codec (1), zero (1), offset in the shard (8).
func (r *record) append(to []byte) []byte {
	to = binary.LittleEndian.AppendUint64(to, r.chunk.Address)
	to = binary.LittleEndian.AppendUint32(to, r.chunk.Size)
	to = binary.LittleEndian.AppendUint32(to, r.stored)
	to = binary.LittleEndian.AppendUint32(to, r.chunk.Checksum)
	to = binary.LittleEndian.AppendUint16(to, uint16(r.shard))
	to = append(to, byte(r.chunk.Codec), 0)
	return binary.LittleEndian.AppendUint64(to, uint64(r.offset))
}

func parseRecord(data []byte) record {
	return record{
		chunk: Chunk{
			Address:  binary.LittleEndian.Uint64(data),
			Size:     binary.LittleEndian.Uint32(data[8:]),
			Checksum: binary.LittleEndian.Uint32(data[16:]),
			Codec:    Codec(data[22]),
		},
		stored: binary.LittleEndian.Uint32(data[12:]),
		shard:  uint32(binary.LittleEndian.Uint16(data[20:])),
		offset: int64(binary.LittleEndian.Uint64(data[24:])),
	}
}

// index holds the records of an index file in their stored form. A large process has a
// million of them.
type index []byte

func (x index) len() int { return len(x) / recordSize }

func (x index) at(i int) record { return parseRecord(x[i*recordSize:]) }

// check refuses records that no writer can have written.
func (x index) check(shardBytes []int64) error {
	var end uint64
	for i := range x.len() {
		r := x.at(i)
		if r.chunk.Size == 0 || r.chunk.Size > ChunkSize || r.chunk.Address < end || r.chunk.Address > math.MaxUint64-ChunkSize {
			return fmt.Errorf("it has a chunk of %d bytes at %#x", r.chunk.Size, r.chunk.Address)
		}
		end = r.chunk.Address + uint64(r.chunk.Size)
		if r.chunk.Codec == Zero {
			if r.stored != 0 {
				return errors.New("it has a chunk of zeros that is stored")
			}
		} else if r.stored == 0 || r.stored > ChunkSize || int(r.shard) >= len(shardBytes) || r.offset < headerSize || r.offset > shardBytes[r.shard]-int64(r.stored) {
			return fmt.Errorf("it has a chunk of %d stored bytes at %d of shard %d", r.stored, r.offset, r.shard)
		}
	}
	return nil
}

// ranges returns the memory that the records cover, with adjacent chunks joined.
func (x index) ranges() []proc.Range {
	var all []proc.Range
	for i := range x.len() {
		chunk := x.at(i).chunk
		end := chunk.Address + uint64(chunk.Size)
		if last := len(all) - 1; last >= 0 && all[last].End == chunk.Address {
			all[last].End = end
			continue
		}
		all = append(all, proc.Range{Start: chunk.Address, End: end})
	}
	return all
}
