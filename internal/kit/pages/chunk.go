package pages

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"cucriu/internal/kit/durable"
)

// ChunkSize is the most memory that one chunk covers, in bytes. No chunk crosses an address
// that is a multiple of it. A chunk of this size stays in the cache of one core on its way
// between file and memory.
const ChunkSize = 256 << 10

// Chunk is a piece of a process's memory.
type Chunk struct {
	Address  uint64 // in the process
	Size     uint32 // bytes of memory
	Checksum uint32 // CRC-32C of the memory
	Codec    Codec
	Data     []byte // the memory as it is stored; empty for [Zero]
}

// Codec says how the memory of a chunk is stored.
type Codec uint8

// The codecs.
const (
	Zero Codec = iota // nothing is stored: all bytes are 0
	Raw               // as it is
	Zstd              // a zstd frame
	S2                // an S2 block
)

var codecNames = [...]string{Zero: "zero", Raw: "none", Zstd: "zstd", S2: "s2"}

func (c Codec) String() string {
	if int(c) < len(codecNames) {
		return codecNames[c]
	}
	return fmt.Sprintf("codec %d", uint8(c))
}

// ParseCodec returns the codec with this name for memory that is not zero.
func ParseCodec(name string) (Codec, error) {
	for _, c := range []Codec{Raw, Zstd, S2} {
		if name == c.String() {
			return c, nil
		}
	}
	return 0, fmt.Errorf("unsupported codec %q", name)
}

func checksum(memory []byte) uint32 { return crc32.Checksum(memory, durable.Castagnoli) }

// coder compresses and decompresses for one worker.
type coder struct {
	codec   Codec // for memory that is not zero
	buffer  []byte
	encoder *zstd.Encoder
	decoder *zstd.Decoder
}

func newCoder(codec Codec) (*coder, error) {
	c := &coder{codec: codec}
	var err error
	if codec == Zstd {
		c.encoder, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false))
	}
	return c, err
}

var zeros [ChunkSize]byte

// encode makes a chunk of the memory at an address. The data of the chunk is valid until
// the next call, or is the memory itself.
func (c *coder) encode(address uint64, memory []byte) Chunk {
	chunk := Chunk{Address: address, Size: uint32(len(memory)), Codec: Zero}
	if memory[0] == 0 && bytes.Equal(memory, zeros[:len(memory)]) {
		return chunk
	}
	chunk.Checksum, chunk.Codec, chunk.Data = checksum(memory), Raw, memory
	switch c.codec {
	case Zstd:
		c.buffer = c.encoder.EncodeAll(memory, c.buffer[:0])
	case S2:
		c.buffer = s2.Encode(c.buffer[:cap(c.buffer)], memory)
	default:
		return chunk
	}
	if len(c.buffer) < len(memory) {
		chunk.Codec, chunk.Data = c.codec, c.buffer
	}
	return chunk
}

// ErrDamaged is wrapped by the error of a chunk that is not what was written.
var ErrDamaged = errors.New("is damaged")

// decode returns the memory of a chunk after checking it. The memory is valid until the
// next call, or is the data of the chunk itself.
func (c *coder) decode(chunk Chunk) ([]byte, error) {
	if cap(c.buffer) < ChunkSize {
		c.buffer = make([]byte, ChunkSize)
	}
	var memory []byte
	var err error
	switch chunk.Codec {
	case Zero:
		return zeros[:chunk.Size], nil
	case Raw:
		memory = chunk.Data
	case Zstd:
		if c.decoder == nil {
			c.decoder, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(ChunkSize))
		}
		if err == nil {
			memory, err = c.decoder.DecodeAll(chunk.Data, c.buffer[:0])
		}
	case S2:
		var size int
		if size, err = s2.DecodedLen(chunk.Data); err == nil && size > ChunkSize {
			err = fmt.Errorf("%d bytes", size)
		}
		if err == nil {
			memory, err = s2.Decode(c.buffer[:ChunkSize], chunk.Data)
		}
	default:
		err = fmt.Errorf("stored with the unsupported %v", chunk.Codec)
	}
	switch {
	case err != nil:
	case len(memory) != int(chunk.Size):
		err = fmt.Errorf("%d bytes instead of %d", len(memory), chunk.Size)
	case checksum(memory) != chunk.Checksum:
		err = errors.New("checksum mismatch")
	}
	if err == nil {
		return memory, nil
	}
	return nil, fmt.Errorf("the chunk of the memory at %#x %w: %w", chunk.Address, ErrDamaged, err)
}

func (c *coder) close() {
	if c.encoder != nil {
		c.encoder.Close()
	}
	if c.decoder != nil {
		c.decoder.Close()
	}
}
