package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"regexp"

	"github.com/klauspost/compress/zstd"

	"cucriu/internal/kit/durable"
)

const (
	// PieceSize is the size of the pieces in which files are sent, in bytes. Only the last of a file
	// is smaller.
	PieceSize = 1 << 20
	// headSize is the size of what goes before each piece: how many bytes follow (4 bytes,
	// little-endian), and the checksum (4 bytes).
	headSize = 8
	// rangesHeader is the HTTP header that names the ranges of which a body has the pieces, as JSON.
	rangesHeader = "Ranges"
	// maxRanges is how many ranges one request has.
	maxRanges = 64
)

// fileRange is a part of a file. It begins at a multiple of PieceSize.
type fileRange struct {
	Name   string `json:"name"`
	Offset int64  `json:"offset"`
	Size   int64  `json:"size"`

	file *File
}

var (
	namePlain = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,200}$`)
	zeros     [PieceSize]byte
)

func checkName(name string) error {
	if !namePlain.MatchString(name) {
		return fmt.Errorf("%.80q is not a valid file name to send", name)
	}
	return nil
}

// The checksum of a piece is the CRC-32C of the header that names the ranges, followed by the pieces
// before and this one: so a piece is where it belongs, too.
func startSum(header string) uint32 { return crc32.Checksum([]byte(header), durable.Castagnoli) }

// packer makes pieces ready to be sent, for one request at a time.
type packer struct {
	encoder *zstd.Encoder // nil: nothing is compressed
	codec   *adaptiveCodec
	plain   []byte // a head and a piece
	packed  []byte // the same, compressed
}

func newPacker(o SendOptions, l *link) (*packer, error) {
	p := &packer{plain: make([]byte, headSize+PieceSize)}
	if !o.Compress {
		return p, nil
	}
	if o.Auto {
		p.codec = newAdaptiveCodec(l, o.Streams)
	}
	p.packed = make([]byte, headSize, headSize+PieceSize+PieceSize/8)
	var err error
	p.encoder, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false))
	return p, err
}

// pack returns a piece, which is in plain, as it is sent, and the checksum up to it. Zeros have no
// content. What does not get smaller is sent as it is.
func (p *packer) pack(size int64, sum uint32) ([]byte, uint32) {
	out := p.plain[:headSize+size]
	content := out[headSize:]
	sum = crc32.Update(sum, durable.Castagnoli, content)
	switch {
	case content[0] == 0 && bytes.Equal(content, zeros[:size]):
		out = out[:headSize]
	case p.encoder != nil && (p.codec == nil || p.codec.worth(content, p.compress)):
		if p.compress(content) < len(content) {
			out = p.packed
		}
	}
	binary.LittleEndian.PutUint32(out, uint32(len(out)-headSize))
	binary.LittleEndian.PutUint32(out[4:], sum)
	return out, sum
}

// compress compresses after the room for a head, and returns the size.
func (p *packer) compress(content []byte) int {
	p.packed = p.encoder.EncodeAll(content, p.packed[:headSize])
	return len(p.packed) - headSize
}

// errBroken is about a connection, not about what came over it.
var errBroken = errors.New("the data connection broke")

// unpacker reads pieces and checks them, of one request at a time.
type unpacker struct {
	decoder     *zstd.Decoder // nil until it is needed
	read, plain []byte
	head        [headSize]byte
	sum         uint32 // up to the last piece
}

// next returns the next piece, which has this size, or nil if it is zeros. It is valid until the
// next call.
func (u *unpacker) next(from io.Reader, size int64) (content []byte, err error) {
	if _, err := io.ReadFull(from, u.head[:]); err != nil {
		return nil, fmt.Errorf("%w: %w", errBroken, err)
	}
	stored := int64(binary.LittleEndian.Uint32(u.head[:]))
	if stored > size {
		return nil, fmt.Errorf("invalid length: %d bytes were announced for a piece of %d", stored, size)
	}
	content = u.read[:stored]
	if _, err := io.ReadFull(from, content); err != nil {
		return nil, fmt.Errorf("%w: %w", errBroken, err)
	}
	if stored == 0 {
		content = zeros[:size]
	} else if stored < size {
		if u.decoder == nil {
			u.decoder, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(PieceSize))
		}
		if err == nil {
			u.plain, err = u.decoder.DecodeAll(content, u.plain[:0])
			content = u.plain
		}
		if err == nil && int64(len(content)) != size {
			err = fmt.Errorf("it has %d bytes, not %d", len(content), size)
		}
		if err != nil {
			return nil, fmt.Errorf("a damaged piece was received: %w", err)
		}
	}
	u.sum = crc32.Update(u.sum, durable.Castagnoli, content)
	if sent := binary.LittleEndian.Uint32(u.head[4:]); sent != u.sum {
		return nil, errors.New("a damaged piece was received: checksum mismatch")
	}
	if stored == 0 {
		return nil, nil
	}
	return content, nil
}
