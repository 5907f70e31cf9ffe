package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"regexp"

	"cucriu/criuutil/pages"
)

const (
	// transferVersion is that of the transfer, which the receiver's welcome says.
	transferVersion = 1
	// chunkSize is the most of a file that one frame holds, in bytes.
	chunkSize = 1 << 20
	// headerSize is the size of a frame from the sender without what follows it.
	headerSize = 28
	// maxOffset bounds offsets and sizes, so that no sum of two overflows.
	maxOffset = math.MaxInt64 / 4
)

// kind is what a frame from the sender says.
type kind uint8

const (
	chunkFrame  kind = 1 + iota // a piece of a file follows
	nameFrame                   // the name of a file follows, before its first frame on a connection
	closedFrame                 // the file is complete, and offset is its size
	finishFrame                 // size is the number of files, and offset that of their bytes
	aliveFrame                  // there is nothing to send
)

// frame is what the sender sends, without what follows it.
type frame struct {
	kind   kind
	codec  pages.Codec // of a chunk: how it is stored
	file   uint32      // the number of the file
	offset int64
	size   uint32 // of a chunk: bytes of the file
	stored uint32 // bytes that follow
	// checksum is the CRC-32C of the chunk, followed by the fields before.
	checksum uint32
}

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	namePlain  = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,200}$`)
)

const maxName = 201

func checkName(name string) error {
	if !namePlain.MatchString(name) {
		return fmt.Errorf("%.80q is not the name of a file to send", name)
	}
	return nil
}

// put writes the frame into the first bytes of to, with the checksum of content.
func (f *frame) put(to, content []byte) {
	to[0], to[1], to[2], to[3] = byte(f.kind), byte(f.codec), 0, 0
	binary.LittleEndian.PutUint32(to[4:], f.file)
	binary.LittleEndian.PutUint64(to[8:], uint64(f.offset))
	binary.LittleEndian.PutUint32(to[16:], f.size)
	binary.LittleEndian.PutUint32(to[20:], f.stored)
	f.checksum = checksum(content, to)
	binary.LittleEndian.PutUint32(to[24:], f.checksum)
}

// checksum is of what a frame holds, and of the frame.
func checksum(content, header []byte) uint32 {
	return crc32.Update(crc32.Checksum(content, castagnoli), castagnoli, header[:headerSize-4])
}

// parseFrame refuses what no sender sends. Only the checksum is left to check, once the content
// is there.
func parseFrame(header []byte) (frame, error) {
	f := frame{
		kind:     kind(header[0]),
		codec:    pages.Codec(header[1]),
		file:     binary.LittleEndian.Uint32(header[4:]),
		offset:   int64(binary.LittleEndian.Uint64(header[8:])),
		size:     binary.LittleEndian.Uint32(header[16:]),
		stored:   binary.LittleEndian.Uint32(header[20:]),
		checksum: binary.LittleEndian.Uint32(header[24:]),
	}
	if header[2] != 0 || header[3] != 0 || f.offset < 0 || f.offset > maxOffset {
		return frame{}, fmt.Errorf("a frame that nobody sends: % x", header[:headerSize])
	}
	possible := false
	switch f.kind {
	case chunkFrame:
		possible = f.size > 0 && f.size <= chunkSize && f.storedPossible()
	case nameFrame:
		possible = f.codec == 0 && f.offset == 0 && f.size == 0 && f.stored > 0 && f.stored <= maxName
	case closedFrame:
		possible = f.codec == 0 && f.size == 0 && f.stored == 0
	case finishFrame:
		possible = f.codec == 0 && f.file == 0 && f.stored == 0
	case aliveFrame:
		possible = f.codec == 0 && f.file == 0 && f.offset == 0 && f.size == 0 && f.stored == 0
	}
	if !possible {
		return frame{}, fmt.Errorf("a frame that nobody sends: % x", header[:headerSize])
	}
	return f, nil
}

// storedPossible reports whether a chunk can take so many bytes.
func (f *frame) storedPossible() bool {
	switch f.codec {
	case pages.Zero:
		return f.stored == 0
	case pages.Raw:
		return f.stored == f.size
	case pages.Zstd, pages.S2:
		return f.stored > 0 && f.stored < f.size // what does not get smaller is sent as it is
	}
	return false
}

// answerKind is what a frame from the receiver says.
type answerKind uint8

const (
	welcomeAnswer answerKind = 1 + iota // count is the version of the protocol
	ackAnswer                           // count is how many frames were taken on this connection
	failedAnswer                        // the reason follows
)

const (
	answerSize = 16
	// maxReason is the longest reason for a failure, in bytes.
	maxReason = 1024
)

// answer is what the receiver sends.
type answer struct {
	kind    answerKind
	noSpace bool // of a failure: the receiver has no space left
	count   uint64
	reason  string
}

func (a *answer) encode() []byte {
	reason := a.reason[:min(len(a.reason), maxReason)]
	data := make([]byte, answerSize, answerSize+len(reason))
	data[0] = byte(a.kind)
	if a.noSpace {
		data[1] = 1
	}
	binary.LittleEndian.PutUint32(data[4:], uint32(len(reason)))
	binary.LittleEndian.PutUint64(data[8:], a.count)
	return append(data, reason...)
}

// readAnswer reads an answer of the receiver.
func readAnswer(r io.Reader) (answer, error) {
	var data [answerSize]byte
	if _, err := io.ReadFull(r, data[:]); err != nil {
		return answer{}, err
	}
	a := answer{kind: answerKind(data[0]), noSpace: data[1] == 1, count: binary.LittleEndian.Uint64(data[8:])}
	length := binary.LittleEndian.Uint32(data[4:])
	switch {
	case data[2] != 0 || data[3] != 0:
		return answer{}, fmt.Errorf("%w: % x", errNonsense, data)
	case a.kind == failedAnswer && length > 0 && length <= maxReason && data[1] <= 1 && a.count == 0:
	case (a.kind == ackAnswer || a.kind == welcomeAnswer) && length == 0 && data[1] == 0:
	default:
		return answer{}, fmt.Errorf("%w: % x", errNonsense, data)
	}
	reason := make([]byte, length)
	if _, err := io.ReadFull(r, reason); err != nil {
		return answer{}, err
	}
	a.reason = string(reason)
	return a, nil
}

// errNonsense says that the other side does not keep to the protocol: to try again is of no use.
var errNonsense = errors.New("the other side sent what nobody sends")
