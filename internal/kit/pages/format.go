package pages

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"cucriu/internal/kit/proc"
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

// IndexBytes returns the size of the index of so many bytes of memory.
func IndexBytes(memory uint64) uint64 { return headerSize + (memory+ChunkSize-1)/ChunkSize*recordSize }

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

// record says where a chunk is. There is one for each chunk of large processes, so it is small.
type record struct {
	address        uint64
	size, checksum uint32 // of the memory
	stored, shard  uint32 // bytes; number of the file
	offset         int64
	codec          Codec
}

// chunk returns the chunk without its data.
func (r record) chunk() Chunk {
	return Chunk{Address: r.address, Size: r.size, Checksum: r.checksum, Codec: r.codec}
}

// append appends the stored form: address (8 bytes), size (4), stored bytes (4), CRC-32C
// (4), shard (2), codec (1), zero (1), offset in the shard (8).
func (r *record) append(to []byte) []byte {
	to = binary.LittleEndian.AppendUint64(to, r.address)
	to = binary.LittleEndian.AppendUint32(to, r.size)
	to = binary.LittleEndian.AppendUint32(to, r.stored)
	to = binary.LittleEndian.AppendUint32(to, r.checksum)
	to = binary.LittleEndian.AppendUint16(to, uint16(r.shard))
	to = append(to, byte(r.codec), 0)
	return binary.LittleEndian.AppendUint64(to, uint64(r.offset))
}

func parseRecord(data []byte) record {
	return record{
		address:  binary.LittleEndian.Uint64(data),
		size:     binary.LittleEndian.Uint32(data[8:]),
		stored:   binary.LittleEndian.Uint32(data[12:]),
		checksum: binary.LittleEndian.Uint32(data[16:]),
		shard:    uint32(binary.LittleEndian.Uint16(data[20:])),
		codec:    Codec(data[22]),
		offset:   int64(binary.LittleEndian.Uint64(data[24:])),
	}
}

// addIndex returns the index of the records, and adds it to the listing.
func (l *Listing) addIndex(pid int, records []record) []byte {
	data := slices.Grow(l.indexHeader(pid), recordSize*len(records))
	for i := range records {
		data = records[i].append(data)
		l.Bytes += uint64(records[i].size)
	}
	l.IndexBytes, l.IndexChecksum = int64(len(data)), checksum(data)
	return data
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
		if r.size == 0 || r.size > ChunkSize || r.address < end || r.address > math.MaxUint64-ChunkSize {
			return fmt.Errorf("invalid chunk of %d bytes at %#x", r.size, r.address)
		}
		end = r.address + uint64(r.size)
		if r.codec == Zero {
			if r.stored != 0 {
				return errors.New("a chunk of zeros has stored bytes")
			}
		} else if r.stored == 0 || r.stored > ChunkSize || int(r.shard) >= len(shardBytes) || r.offset < headerSize || r.offset > shardBytes[r.shard]-int64(r.stored) {
			return fmt.Errorf("invalid chunk of %d stored bytes at offset %d of shard %d", r.stored, r.offset, r.shard)
		}
	}
	return nil
}

// ranges returns the memory that the records cover, with adjacent chunks joined.
func (x index) ranges() []proc.Range {
	var all []proc.Range
	for i := range x.len() {
		r := x.at(i)
		end := r.address + uint64(r.size)
		if last := len(all) - 1; last >= 0 && all[last].End == r.address {
			all[last].End = end
			continue
		}
		all = append(all, proc.Range{Start: r.address, End: end})
	}
	return all
}
