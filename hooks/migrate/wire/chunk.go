package wire

import (
	"bytes"
	"fmt"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"cucriu/criuutil/pages"
)

var zeros [chunkSize]byte

// packer makes frames of chunks, for one connection.
type packer struct {
	codec   pages.Codec
	thrift  *thrift // says which chunks are compressed; nil for all
	encoder *zstd.Encoder
	plain   []byte // room for a header, and then for a chunk
	packed  []byte // the same, for a compressed one
}

func newPacker(codec pages.Codec, t *thrift) (*packer, error) {
	p := &packer{codec: codec, thrift: t, plain: make([]byte, headerSize+chunkSize)}
	switch codec {
	case pages.Zero, pages.Raw:
		p.codec = pages.Raw
	case pages.S2:
		p.packed = make([]byte, headerSize+s2.MaxEncodedLen(chunkSize))
	case pages.Zstd:
		var err error
		p.encoder, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false))
		if err != nil {
			return nil, err
		}
		p.packed = make([]byte, headerSize, headerSize+chunkSize+chunkSize/8)
	default:
		return nil, fmt.Errorf("%v is no way to send", codec)
	}
	return p, nil
}

// newPackers makes one for each connection of a sender.
func newPackers(o SendOptions, l *link) ([]*packer, error) {
	l.rate.Store(uint64(min(o.Link, maxOffset)))
	packers := make([]*packer, o.Streams)
	for i := range packers {
		var t *thrift
		if o.Auto {
			t = newThrift(l, o.Streams)
		}
		var err error
		if packers[i], err = newPacker(o.Codec, t); err != nil {
			return nil, err
		}
	}
	return packers, nil
}

// chunk is where a chunk of this size is to be read to.
func (p *packer) chunk(size uint32) []byte { return p.plain[headerSize : headerSize+size] }

// pack returns a frame of the chunk that was read, with what follows it. It is valid until the
// next chunk.
func (p *packer) pack(file uint32, offset int64, size uint32) []byte {
	f := frame{kind: chunkFrame, codec: pages.Raw, file: file, offset: offset, size: size, stored: size}
	content, out := p.chunk(size), p.plain
	switch {
	case content[0] == 0 && bytes.Equal(content, zeros[:size]):
		f.codec, f.stored = pages.Zero, 0
		content = nil
	case p.codec == pages.Raw:
	case p.thrift == nil || p.thrift.worth(content, p.compress):
		f.pickSmaller(&out, p.packed, p.codec, p.compress(content))
	}
	f.put(out, content)
	return out[:headerSize+f.stored]
}

// compress compresses after the room for a header, and returns the size.
func (p *packer) compress(content []byte) int {
	if p.codec == pages.S2 {
		return len(s2.Encode(p.packed[headerSize:], content))
	}
	p.packed = p.encoder.EncodeAll(content, p.packed[:headerSize])
	return len(p.packed) - headerSize
}

// pickSmaller takes the compressed chunk if it is smaller.
func (f *frame) pickSmaller(out *[]byte, packed []byte, codec pages.Codec, stored int) {
	if stored < int(f.size) {
		f.codec, f.stored, *out = codec, uint32(stored), packed
	}
}

func (p *packer) close() {
	if p.encoder != nil {
		p.encoder.Close()
	}
}

// unpacker checks and decompresses what follows a frame, for one connection.
type unpacker struct {
	decoder *zstd.Decoder
	buffer  []byte
}

// unpack returns the bytes of a chunk, or none for zeros. They are valid until the next call, or
// are what followed the frame.
func (u *unpacker) unpack(f *frame, header, followed []byte) ([]byte, error) {
	content := followed
	var err error
	switch f.codec {
	case pages.Zstd:
		if u.decoder == nil {
			u.decoder, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(chunkSize))
		}
		if err == nil {
			content, err = u.decoder.DecodeAll(followed, u.room()[:0])
		}
	case pages.S2:
		var size int
		if size, err = s2.DecodedLen(followed); err == nil && size > chunkSize {
			err = fmt.Errorf("it has %d bytes", size)
		}
		if err == nil {
			content, err = s2.Decode(u.room(), followed)
		}
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("the chunk at %d came damaged: %w", f.offset, err)
	case f.codec != pages.Zero && len(content) != int(f.size):
		return nil, fmt.Errorf("the chunk at %d came damaged: it has %d bytes, not %d", f.offset, len(content), f.size)
	}
	return content, verify(f, header, content)
}

func (u *unpacker) room() []byte {
	if u.buffer == nil {
		u.buffer = make([]byte, chunkSize)
	}
	return u.buffer
}

func (u *unpacker) close() {
	if u.decoder != nil {
		u.decoder.Close()
	}
}

// verify checks the checksum of a frame.
func verify(f *frame, header, content []byte) error {
	if sum := checksum(content, header); sum != f.checksum {
		return fmt.Errorf("a frame came damaged: its CRC-32C is %08x, and %08x was sent", sum, f.checksum)
	}
	return nil
}
