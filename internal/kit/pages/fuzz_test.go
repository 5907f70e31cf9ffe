package pages

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"testing"

	"cucriu/internal/kit/proc"
)

// FuzzIndex checks every index that is accepted: it can be filled in, no number overflows,
// no piece lies outside its shard, no two chunks overlap, and it is written as it was read.
func FuzzIndex(f *testing.F) {
	shardBytes := []int64{headerSize + 100, headerSize + 2*ChunkSize}
	raw := record{address: 0x7f0000000000, size: 50, checksum: 1, codec: Raw, stored: 50, offset: headerSize}
	zero := record{address: 0x7f0000000032, size: ChunkSize, codec: Zero}
	change := func(r record, change func(*record)) []byte { change(&r); return r.append(nil) }
	f.Add([]byte{})
	f.Add(zero.append(raw.append(nil)))
	f.Add(raw.append(zero.append(nil)))
	f.Add(raw.append(raw.append(nil)))
	f.Add(change(raw, func(r *record) { r.offset = math.MaxInt64 }))
	f.Add(change(raw, func(r *record) { r.offset = math.MinInt64 }))
	f.Add(change(raw, func(r *record) { r.stored = math.MaxUint32 }))
	f.Add(change(raw, func(r *record) { r.shard, r.stored = 1, ChunkSize+1 }))
	f.Add(change(raw, func(r *record) { r.size = math.MaxUint32 }))
	f.Add(change(raw, func(r *record) { r.address = math.MaxUint64 - ChunkSize }))
	f.Add(change(zero, func(r *record) { r.address = math.MaxUint64 }))
	f.Add(change(zero, func(r *record) { r.stored = 1 }))
	f.Add(change(raw, func(r *record) { r.shard = math.MaxUint16 }))
	f.Add(bytes.Repeat([]byte{0xff}, recordSize))
	f.Fuzz(func(t *testing.T, data []byte) {
		data = data[:len(data)/recordSize*recordSize] // what a valid listing says
		x := index(data)
		if x.check(shardBytes) != nil {
			return
		}
		var end, total uint64
		var written []byte
		for i := range x.len() {
			r := x.at(i)
			last, carry := bits.Add64(r.address, uint64(r.size), 0)
			if carry != 0 || r.address < end || r.size == 0 || r.size > ChunkSize {
				t.Fatalf("accepted %+v after %#x", r, end)
			}
			end, total = last, total+uint64(r.size)
			if r.codec != Zero {
				in, carry := bits.Add64(uint64(r.offset), uint64(r.stored), 0)
				if carry != 0 || r.shard > 1 || r.offset < headerSize || in > uint64(shardBytes[r.shard]) || r.stored > ChunkSize {
					t.Fatalf("accepted %+v", r)
				}
			}
			written = r.append(written)
		}
		if covered := x.ranges(); proc.Total(covered) != total {
			t.Fatalf("ranges %v of %d bytes", covered, total)
		}
		for i := range x.len() {
			data[i*recordSize+23] = 0 // this byte is not used
		}
		if !bytes.Equal(data, written) {
			t.Fatalf("read %x, written %x", data, written)
		}
	})
}

// FuzzChunk checks that a chunk is decoded to exactly its memory, or refused, whatever is
// stored.
func FuzzChunk(f *testing.F) {
	for _, codec := range []Codec{Raw, Zstd, S2} {
		coder, err := newCoder(codec)
		must(f, err)
		chunk := coder.encode(0, text[:ChunkSize])
		if codec != Raw {
			f.Add(byte(codec), uint32(ChunkSize), chunk.Data)
		}
		f.Add(byte(codec), uint32(1), coder.encode(0, text[:100]).Data)
		coder.close()
	}
	// An S2 block that claims to hold 4 GiB.
	f.Add(byte(S2), uint32(ChunkSize), binary.AppendUvarint(nil, math.MaxUint32))
	f.Fuzz(func(t *testing.T, codec byte, size uint32, data []byte) {
		if codec == byte(Zero) || size == 0 || size > ChunkSize || len(data) > ChunkSize {
			return // no index says so
		}
		of := text[:size] // what was stored, as far as the checksum knows
		coder := &coder{}
		defer coder.close()
		memory, err := coder.decode(Chunk{Size: size, Codec: Codec(codec), Data: data, Checksum: checksum(of)})
		if err == nil && !bytes.Equal(memory, of) {
			t.Fatalf("decoded to %d bytes that nobody stored", len(memory))
		}
	})
}
