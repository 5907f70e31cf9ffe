package pagemap

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"google.golang.org/protobuf/encoding/protowire"
)

// Flags of an entry: PE_… of criu's pagemap.h.
const (
	InParent = 1 << 0 // its content is in the parent
	lazy     = 1 << 1
	present  = 1 << 2 // its content is in the file of pages
)

const (
	magicCommon  = 0x54564319
	magicPagemap = 0x56084025

	maxBytes = 64 << 20 // of a pagemap
	maxFrame = 64       // bytes of an entry: five numbers
)

// Map is a pagemap.
type Map struct {
	PagesID uint32 // the content is in pages-ID.img
	Entries []Entry
	// wide says that numbers of pages are 64 bits wide, in a field that criu has since 4.2.
	wide bool
}

// Entry is a range of pages.
type Entry struct {
	Address uint64
	Pages   uint64
	Flags   uint32
}

// Range is a part of an address space: [Start, End).
type Range struct{ Start, End uint64 }

// PageSize returns the size of a page on this machine, in bytes.
func PageSize() uint64 { return uint64(os.Getpagesize()) }

// PagesName returns the name of the file with the content.
func (m Map) PagesName() string { return fmt.Sprintf("pages-%d.img", m.PagesID) }

func (e Entry) end() uint64 { return e.Address + e.Pages*PageSize() }

// isHere reports whether the content is in the file of pages.
func (e Entry) isHere() bool { return e.Flags&present != 0 && e.Flags&InParent == 0 }

// Ranges returns where there is content, here or in the parent.
func (m Map) Ranges() []Range {
	var ranges []Range
	for _, e := range m.Entries {
		if e.Flags&(present|InParent) != 0 {
			ranges = append(ranges, Range{Start: e.Address, End: e.end()})
		}
	}
	return ranges
}

// Bytes returns how large the file of pages is.
func (m Map) Bytes() int64 { return m.bytes(Entry.isHere) }

// ParentBytes returns how much content is in the parent.
func (m Map) ParentBytes() int64 {
	return m.bytes(func(e Entry) bool { return e.Flags&InParent != 0 })
}

func (m Map) bytes(counts func(Entry) bool) int64 {
	var pages uint64
	for _, e := range m.Entries {
		if counts(e) {
			pages += e.Pages
		}
	}
	return int64(pages * PageSize())
}

var (
	// ErrUnknown says that a pagemap has parts that this package does not know.
	ErrUnknown = errors.New("it has an unknown part")

	errCutOff = errors.New("it is truncated")
)

// Read reads a pagemap. It refuses one of which this package does not know every part, so that
// nothing is lost when it is written again.
func Read(f *os.File) (Map, error) {
	info, err := f.Stat()
	if err != nil {
		return Map{}, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxBytes {
		return Map{}, fmt.Errorf("it is not a regular file of at most %d bytes", maxBytes)
	}
	return parse(io.NewSectionReader(f, 0, info.Size()))
}

func parse(from io.Reader) (Map, error) {
	r := bufio.NewReaderSize(from, 64<<10)
	var magic [8]byte
	if _, err := io.ReadFull(r, magic[:]); err != nil {
		return Map{}, errCutOff
	}
	if binary.LittleEndian.Uint32(magic[:]) != magicCommon || binary.LittleEndian.Uint32(magic[4:]) != magicPagemap {
		return Map{}, errors.New("it has no pagemap header")
	}
	buffer := make([]byte, maxFrame)
	head, err := readFrame(r, buffer)
	if errors.Is(err, io.EOF) {
		return Map{}, errCutOff
	}
	if err != nil {
		return Map{}, err
	}
	if head.seen != 1<<1 || head.number[1] > math.MaxUint32 {
		return Map{}, fmt.Errorf("its head: %w", ErrUnknown)
	}
	m := Map{PagesID: uint32(head.number[1])}
	for pages := uint64(0); ; {
		f, err := readFrame(r, buffer)
		if errors.Is(err, io.EOF) {
			return m, nil
		}
		if err != nil {
			return Map{}, err
		}
		e, err := f.entry()
		if err != nil {
			return Map{}, err
		}
		isWide := f.seen&(1<<5) != 0
		if n := len(m.Entries); n == 0 {
			m.wide = isWide
		} else if m.wide != isWide {
			return Map{}, fmt.Errorf("mixed kinds of entries: %w", ErrUnknown)
		} else if e.Address < m.Entries[n-1].end() {
			return Map{}, fmt.Errorf("its entry at %#x is not in order", e.Address)
		}
		if pages += e.Pages; pages > math.MaxInt64/PageSize() {
			return Map{}, fmt.Errorf("it has %d pages", pages)
		}
		m.Entries = append(m.Entries, e)
	}
}

// frame is a message of numbers.
type frame struct {
	number [6]uint64 // of each field
	seen   uint8     // which fields there are
}

// readFrame returns io.EOF at the end.
func readFrame(r io.Reader, buffer []byte) (frame, error) {
	var size [4]byte
	switch _, err := io.ReadFull(r, size[:]); {
	case errors.Is(err, io.EOF):
		return frame{}, io.EOF
	case errors.Is(err, io.ErrUnexpectedEOF):
		return frame{}, errCutOff
	case err != nil:
		return frame{}, err
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n > uint32(len(buffer)) {
		return frame{}, fmt.Errorf("an entry of %d bytes: %w", n, ErrUnknown)
	}
	data := buffer[:n]
	if _, err := io.ReadFull(r, data); err != nil {
		return frame{}, errCutOff
	}
	var f frame
	for len(data) > 0 {
		field, kind, n := protowire.ConsumeTag(data)
		if n < 0 || kind != protowire.VarintType || int(field) >= len(f.number) || f.seen&(1<<field) != 0 {
			return frame{}, ErrUnknown
		}
		value, m := protowire.ConsumeVarint(data[n:])
		if m < 0 {
			return frame{}, errCutOff
		}
		f.number[field], f.seen, data = value, f.seen|1<<field, data[n+m:]
	}
	return f, nil
}

func (f frame) entry() (Entry, error) {
	const needed = 1<<1 | 1<<2
	e := Entry{Address: f.number[1], Pages: f.number[2], Flags: uint32(f.number[4])}
	if f.seen&(1<<5) != 0 {
		e.Pages = f.number[5]
	}
	switch inParent := f.number[3]; {
	case f.seen&needed != needed || inParent > 1 || f.number[4] > InParent|lazy|present:
		return Entry{}, ErrUnknown
	case inParent == 1:
		e.Flags |= InParent
	case f.seen&(1<<4) == 0:
		e.Flags = present // written by an old criu
	}
	size := PageSize()
	if e.Pages == 0 || f.seen&(1<<5) == 0 && e.Pages > math.MaxUint32 || e.Address%size != 0 || e.Pages > (math.MaxUint64-e.Address)/size {
		return Entry{}, fmt.Errorf("%d pages at %#x", e.Pages, e.Address)
	}
	return e, nil
}

// WriteTo writes a pagemap as criu does.
func (m Map) WriteTo(to io.Writer) (int64, error) {
	w := bufio.NewWriterSize(to, 64<<10)
	data := binary.LittleEndian.AppendUint32(nil, magicCommon)
	data = binary.LittleEndian.AppendUint32(data, magicPagemap)
	data = appendFrame(data, appendField(nil, 1, uint64(m.PagesID)))
	var written int64
	var message []byte
	for i := 0; ; i++ {
		n, err := w.Write(data)
		written += int64(n)
		if err != nil {
			return written, err
		}
		if i == len(m.Entries) {
			return written, w.Flush()
		}
		e := m.Entries[i]
		message = appendField(message[:0], 1, e.Address)
		if m.wide {
			message = appendField(message, 2, 0)
		} else {
			message = appendField(message, 2, e.Pages)
		}
		message = appendField(message, 4, uint64(e.Flags))
		if m.wide {
			message = appendField(message, 5, e.Pages)
		}
		data = appendFrame(data[:0], message)
	}
}

func appendField(data []byte, field protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(data, field, protowire.VarintType), value)
}

func appendFrame(data, message []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(data, uint32(len(message))), message...)
}
