package pagemap

import (
	"bytes"
	"errors"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// memory is what a process has at its addresses, by the number of the page.
type memory map[uint64]byte

// dump returns a dump of memory, in which an entry has at most so many pages.
func (m memory) dump(id uint32, longest int, wide bool) Dump {
	d := Dump{Map: Map{PagesID: id, wide: wide}}
	var content []byte
	for _, page := range m.pages() {
		at := page * PageSize()
		if n := len(d.Map.Entries); n > 0 && d.Map.Entries[n-1].end() == at && d.Map.Entries[n-1].Pages < uint64(longest) {
			d.Map.Entries[n-1].Pages++
		} else {
			d.Map.Entries = append(d.Map.Entries, Entry{Address: at, Pages: 1, Flags: present | lazy*uint32(page%2)})
		}
		content = append(content, m.content(page)...)
	}
	d.Pages, d.Bytes = bytes.NewReader(content), int64(len(content))
	return d
}

func (m memory) pages() []uint64 {
	var pages []uint64
	for page := range m {
		pages = append(pages, page)
	}
	slices.Sort(pages)
	return pages
}

// content differs from page to page, and in one byte only from that of another version.
func (m memory) content(page uint64) []byte {
	data := bytes.Repeat([]byte{byte(page)}, int(PageSize()))
	data[int(page*97)%len(data)] = m[page]
	return data
}

// restored returns what criu reads for the pages of a dump that has a parent.
func restored(t *rapid.T, m Map, pages io.Reader, parent Dump) map[uint64][]byte {
	at := make(map[uint64]int64)
	var offset int64
	for _, e := range parent.Map.Entries {
		for i := range e.Pages {
			at[e.Address/PageSize()+i] = offset
			offset += int64(PageSize())
		}
	}
	all := make(map[uint64][]byte)
	for _, e := range m.Entries {
		for i := range e.Pages {
			page, data := e.Address/PageSize()+i, make([]byte, PageSize())
			if e.Flags&InParent == 0 {
				if _, err := io.ReadFull(pages, data); err != nil {
					t.Fatalf("page %d: %v", page, err)
				}
			} else if from, is := at[page]; !is {
				t.Fatalf("page %d is not in the parent", page)
			} else if _, err := parent.Pages.ReadAt(data, from); err != nil {
				t.Fatal(err)
			}
			all[page] = data
		}
	}
	if n, _ := io.Copy(io.Discard, pages); n > 0 {
		t.Fatalf("%d bytes belong to no page", n)
	}
	return all
}

func drawMemory(t *rapid.T, name string) memory {
	m := make(memory)
	for _, r := range rapid.SliceOfN(rapid.Custom(func(t *rapid.T) [2]uint64 {
		return [2]uint64{rapid.Uint64Range(16, 900).Draw(t, "begin"), rapid.Uint64Range(1, 300).Draw(t, "pages")}
	}), 0, 5).Draw(t, name) {
		for page := r[0]; page < r[0]+r[1]; page++ {
			m[page] = 1
		}
	}
	return m
}

// counter counts what is read.
type counter struct {
	io.ReaderAt
	read int64
}

func (c *counter) ReadAt(data []byte, offset int64) (int, error) {
	n, err := c.ReaderAt.ReadAt(data, offset)
	c.read += int64(n)
	return n, err
}

// TestADifferenceHasAllPages compares any two dumps. What criu reads for the difference is what it
// reads for the whole dump.
func TestADifferenceHasAllPages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base, now := drawMemory(t, "base"), drawMemory(t, "new areas")
		for page, content := range base {
			if rapid.IntRange(0, 9).Draw(t, "kept") > 0 {
				now[page] = content
			}
		}
		for _, page := range now.pages() {
			if rapid.IntRange(0, 3).Draw(t, "changed") == 0 {
				now[page] = 2
			}
		}
		own := []Range{{Start: 200 * PageSize(), End: 230 * PageSize()}, {Start: 230 * PageSize(), End: 231 * PageSize()}, {Start: 500 * PageSize(), End: 700 * PageSize()}}
		isOwn := func(page uint64) bool {
			return slices.ContainsFunc(own, func(r Range) bool { return r.Start <= page*PageSize() && page*PageSize() < r.End })
		}
		old := base.dump(3, rapid.IntRange(1, 400).Draw(t, "longest of the base"), false)
		dump := now.dump(4, rapid.IntRange(1, 400).Draw(t, "longest"), rapid.Bool().Draw(t, "wide"))
		counted := &counter{ReaderAt: old.Pages}
		old.Pages = counted
		d, err := Compare(t.Context(), dump, old, own, math.MaxInt64)
		if err != nil {
			t.Fatal(err)
		}
		read := counted.read
		var all bytes.Buffer
		if _, err := io.Copy(&all, io.NewSectionReader(old.Pages, 0, old.Bytes)); err != nil {
			t.Fatal(err)
		}
		if read != old.Bytes || d.Checksum != crc32.Checksum(all.Bytes(), crc32.MakeTable(crc32.Castagnoli)) {
			t.Fatalf("%d of %d bytes of the base were read", read, old.Bytes)
		}
		want := int64(0)
		for page, version := range now {
			if then, is := base[page]; !is || then != version || isOwn(page) {
				want += int64(PageSize())
			}
		}
		if d.Map.Bytes() != want || d.Map.ParentBytes() != dump.Bytes-want {
			t.Fatalf("%d bytes have changed and %d have not, want %d of %d", d.Map.Bytes(), d.Map.ParentBytes(), want, dump.Bytes)
		}
		for _, e := range d.Map.Entries {
			if e.Flags&InParent != 0 && isOwn(e.Address/PageSize()) {
				t.Fatalf("%#x is left to the parent", e.Address)
			}
		}
		var written bytes.Buffer
		if _, err := d.Map.WriteTo(&written); err != nil {
			t.Fatal(err)
		}
		again, err := parse(&written)
		if err != nil || !slices.Equal(again.Entries, d.Map.Entries) || again.PagesID != 4 {
			t.Fatalf("%v is read again as %v: %v", d.Map, again, err)
		}
		var changed bytes.Buffer
		if err := d.WriteChanged(t.Context(), &changed); err != nil {
			t.Fatal(err)
		}
		got := restored(t, again, &changed, old)
		if len(got) != len(now) {
			t.Fatalf("%d pages, want %d", len(got), len(now))
		}
		for page, data := range got {
			if !bytes.Equal(data, now.content(page)) {
				t.Fatalf("page %d is another one", page)
			}
		}
	})
}

func TestACompareEndsOnceTooMuchHasChanged(t *testing.T) {
	base, now := make(memory), make(memory)
	for page := uint64(16); page < 2064; page++ {
		base[page], now[page] = 1, 2
	}
	old := base.dump(1, 4096, false)
	counted := &counter{ReaderAt: old.Pages}
	old.Pages = counted
	_, err := Compare(t.Context(), now.dump(1, 4096, false), old, nil, 1<<20)
	if !errors.Is(err, ErrDiffers) || counted.read > 3<<20 {
		t.Errorf("%v after %d bytes", err, counted.read)
	}
}

func TestADumpThatIsNotWholeIsRefused(t *testing.T) {
	m := memory{16: 1, 17: 1, 20: 1}
	good := m.dump(1, 100, false)
	for name, bad := range map[string]Dump{
		"a difference":   {Map: Map{Entries: []Entry{{Address: 16 * PageSize(), Pages: 1, Flags: InParent}}}, Pages: good.Pages},
		"too few pages":  {Map: good.Map, Pages: good.Pages, Bytes: good.Bytes - 1},
		"too many pages": {Map: good.Map, Pages: good.Pages, Bytes: good.Bytes + int64(PageSize())},
	} {
		for _, dumps := range [][2]Dump{{bad, good}, {good, bad}} {
			if _, err := Compare(t.Context(), dumps[0], dumps[1], nil, math.MaxInt64); err == nil {
				t.Errorf("%s: no error", name)
			}
		}
	}
	short := good
	short.Pages = bytes.NewReader(make([]byte, PageSize()))
	if _, err := Compare(t.Context(), good, short, nil, math.MaxInt64); !errors.Is(err, ErrUnreadable) {
		t.Errorf("a short base: %v", err)
	}
	if _, err := Compare(t.Context(), short, good, nil, math.MaxInt64); err == nil || errors.Is(err, ErrUnreadable) {
		t.Errorf("a short dump: %v", err)
	}
	d, err := Compare(t.Context(), good, good, []Range{{End: math.MaxUint64}}, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	d.from = short
	if err := d.WriteChanged(t.Context(), io.Discard); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a dump that gets shorter: %v", err)
	}
}

func encoded(t testing.TB, m Map) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := m.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestAPagemapThatIsNotUnderstoodIsRefused(t *testing.T) {
	size := PageSize()
	good := Map{PagesID: 7, Entries: []Entry{{16 * size, 4, present}, {20 * size, 1, present | lazy}}}
	whole := encoded(t, good)
	head := encoded(t, Map{PagesID: 7})
	frame := func(fields ...uint64) []byte { // field, value, field, value…
		var message []byte
		for i := 0; i < len(fields); i += 2 {
			message = append(appendVarint(message, fields[i]<<3), appendVarint(nil, fields[i+1])...)
		}
		return appendFrame(slices.Clone(head), message)
	}
	for _, test := range []struct {
		name string
		data []byte
		want string
	}{
		{"cut off", whole[:len(whole)-1], "truncated"},
		{"in its head", head[:len(head)-1], "truncated"},
		{"without a head", head[:8], "truncated"},
		{"of another kind", append([]byte{1, 2, 3, 4}, whole[4:]...), "no pagemap header"},
		{"without a number of pages", frame(1, 16*size, 4, present), "unknown part"},
		{"with a new field", frame(1, 16*size, 2, 1, 6, 1), "unknown part"},
		{"with a field twice", frame(1, 16*size, 2, 1, 2, 3), "unknown part"},
		{"with an unknown flag", frame(1, 16*size, 2, 1, 4, 8), "unknown part"},
		{"no pages", frame(1, 16*size, 2, 0, 4, present), "0 pages"},
		{"not at a page", frame(1, 16*size+8, 2, 1, 4, present), "1 pages at"},
		{"beyond the address space", frame(1, math.MaxUint64-size+1, 2, 2, 4, present), "2 pages at"},
		{"more pages than the field holds", frame(1, size, 2, 1<<32, 4, present), "4294967296 pages"},
		{"out of order", encoded(t, Map{Entries: []Entry{good.Entries[1], good.Entries[0]}}), "not in order"},
		{"overlapping", encoded(t, Map{Entries: []Entry{good.Entries[0], good.Entries[0]}}), "not in order"},
		{"a long entry", appendFrame(slices.Clone(head), make([]byte, maxFrame+1)), "unknown part"},
		{"an entry without an end", append(slices.Clone(head), 0xff, 0xff, 0xff, 0xff), "unknown part"},
	} {
		if m, err := parse(bytes.NewReader(test.data)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, %v", test.name, m, err)
		}
	}
	if m, err := parse(bytes.NewReader(frame(1, 16*size, 2, 3, 3, 1))); err != nil || m.ParentBytes() != int64(3*size) {
		t.Errorf("an old criu's mark: %v, %v", m, err)
	}
	if m, err := parse(bytes.NewReader(frame(1, 16*size, 2, 3))); err != nil || m.Bytes() != int64(3*size) {
		t.Errorf("an old criu's entry: %v, %v", m, err)
	}
	if m, err := parse(bytes.NewReader(frame(1, 16*size, 2, 0, 4, present, 5, 1<<33))); err != nil || m.Bytes() != int64(size<<33) {
		t.Errorf("a new criu's entry: %v, %v", m, err)
	}
}

func appendVarint(data []byte, value uint64) []byte {
	for ; value > 127; value >>= 7 {
		data = append(data, byte(value)|128)
	}
	return append(data, byte(value))
}

func FuzzParse(f *testing.F) {
	f.Add(encoded(f, Map{PagesID: 7, Entries: []Entry{{16 * PageSize(), 4, present}, {20 * PageSize(), 1, InParent}}}))
	f.Add(encoded(f, Map{PagesID: 7, Entries: []Entry{{16 * PageSize(), 1 << 40, present}}, wide: true}))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parse(bytes.NewReader(data))
		if err != nil {
			return
		}
		again, err := parse(bytes.NewReader(encoded(t, m)))
		if err != nil || again.PagesID != m.PagesID || again.Bytes() != m.Bytes() || !slices.Equal(again.Entries, m.Entries) {
			t.Fatalf("%v is read again as %v: %v", m, again, err)
		}
		if m.Bytes() < 0 || m.ParentBytes() < 0 || len(m.Entries) > len(data)/8 {
			t.Fatalf("%d entries of %d and %d bytes in %d", len(m.Entries), m.Bytes(), m.ParentBytes(), len(data))
		}
	})
}
