package pagemap

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sort"

	"cucriu/internal/kit/durable"
)

// Dump is the memory of a process in a dump, or shared memory.
type Dump struct {
	Map   Map
	Pages io.ReaderAt // the file of pages
	Bytes int64       // its size
}

// Validate refuses a dump that is not whole: one that needs a parent, or has other content than
// its pagemap says.
func (d Dump) Validate() error {
	if d.Map.ParentBytes() > 0 {
		return errors.New("it needs a parent")
	}
	if want := d.Map.Bytes(); d.Bytes != want {
		return fmt.Errorf("%s has %d bytes, but its pagemap describes %d", d.Map.PagesName(), d.Bytes, want)
	}
	return nil
}

// Difference is what of a dump differs from a base.
type Difference struct {
	// Map is the pagemap of the dump with the base as its parent.
	Map Map
	// Checksum is the CRC-32C of the base's file of pages.
	Checksum uint32

	from Dump
}

var (
	// ErrDiffers says that a dump has too little in common with a base.
	ErrDiffers = errors.New("too much has changed")
	// ErrUnreadable says that a base could not be read.
	ErrUnreadable = errors.New("it could not be read")
)

const (
	pieceBytes = 1 << 20 // is compared at once
	maxEntries = 1 << 20 // of the pagemap of a difference
)

// Compare compares the memory in a dump with that in a base, byte by byte, and reads all of the
// base. What is in one of the areas of own, which are in order, counts as changed. Compare fails
// with [ErrDiffers] as soon as more than limit bytes have changed.
func Compare(ctx context.Context, dump, base Dump, own []Range, limit int64) (Difference, error) {
	for _, d := range []Dump{dump, base} {
		if err := d.Validate(); err != nil {
			return Difference{}, err
		}
	}
	c := comparer{
		ctx: ctx, dump: dump, base: base, own: own, limit: limit,
		difference: Difference{Map: Map{PagesID: dump.Map.PagesID, wide: dump.Map.wide}, from: dump},
		buffers:    [2][]byte{make([]byte, pieceBytes), make([]byte, pieceBytes)},
	}
	for _, e := range dump.Map.Entries {
		if err := c.entry(e); err != nil {
			return Difference{}, err
		}
	}
	if err := c.skipTo(1<<64 - 1); err != nil {
		return Difference{}, err
	}
	c.difference.Checksum = c.sum
	return c.difference, nil
}

// comparer goes through both dumps at the same time. Their addresses only rise.
type comparer struct {
	ctx        context.Context //nolint:containedctx // of one comparison
	dump, base Dump
	own        []Range
	limit      int64
	buffers    [2][]byte
	difference Difference

	next    int    // entry of the base
	done    uint64 // pages of it that were read
	offset  int64  // in the base's pages
	from    int64  // in the dump's pages
	sum     uint32 // of the base's pages up to offset
	changed int64  // bytes
}

// entry compares an entry of the dump.
func (c *comparer) entry(e Entry) error {
	if !e.isHere() {
		return c.emit(e, e.Address, e.Pages, e.Flags)
	}
	size := PageSize()
	for at := e.Address; at < e.end(); {
		if err := c.skipTo(at); err != nil {
			return err
		}
		end, isOwn := c.ownUntil(at, e.end())
		in, until := c.baseUntil(at)
		end = min(end, until)
		pages := (end - at) / size
		if isOwn || !in {
			if err := c.emit(e, at, pages, e.Flags); err != nil {
				return err
			}
			c.from += int64(pages * size)
			at = end
			continue
		}
		pages = min(pages, pieceBytes/size)
		if err := c.compare(e, at, pages); err != nil {
			return err
		}
		at += pages * size
	}
	return nil
}

// ownUntil reports whether an address is in an own area, and up to where that is so.
func (c *comparer) ownUntil(at, end uint64) (uint64, bool) {
	i := sort.Search(len(c.own), func(i int) bool { return c.own[i].End > at })
	switch {
	case i == len(c.own):
		return end, false
	case c.own[i].Start <= at:
		return min(end, c.own[i].End), true
	}
	return min(end, c.own[i].Start), false
}

// baseUntil reports whether the base has the page at an address, to which it has been skipped, and
// up to where that is so.
func (c *comparer) baseUntil(at uint64) (bool, uint64) {
	if c.next == len(c.base.Map.Entries) {
		return false, 1<<64 - 1
	}
	e := c.base.Map.Entries[c.next]
	if here := e.Address + c.done*PageSize(); here > at {
		return false, here
	}
	return true, e.end()
}

// skipTo reads the base up to an address.
func (c *comparer) skipTo(at uint64) error {
	size := PageSize()
	for ; c.next < len(c.base.Map.Entries); c.next, c.done = c.next+1, 0 {
		e := c.base.Map.Entries[c.next]
		if !e.isHere() {
			continue
		}
		for c.done < e.Pages {
			here := e.Address + c.done*size
			if here >= at {
				return nil
			}
			n := min(e.Pages-c.done, (at-here+size-1)/size, pieceBytes/size)
			if err := c.readBase(c.buffers[1][:n*size]); err != nil {
				return err
			}
		}
	}
	return nil
}

// readBase reads what comes next in the base.
func (c *comparer) readBase(buffer []byte) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	if n, err := c.base.Pages.ReadAt(buffer, c.offset); n < len(buffer) {
		return fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	c.sum = crc32.Update(c.sum, durable.Castagnoli, buffer)
	c.offset += int64(len(buffer))
	c.done += uint64(len(buffer)) / PageSize()
	return nil
}

// compare compares pages that both have.
func (c *comparer) compare(e Entry, at, pages uint64) error {
	size := PageSize()
	now, then := c.buffers[0][:pages*size], c.buffers[1][:pages*size]
	if n, err := c.dump.Pages.ReadAt(now, c.from); n < len(now) {
		return fmt.Errorf("%s: %w", c.dump.Map.PagesName(), err)
	}
	if err := c.readBase(then); err != nil {
		return err
	}
	c.from += int64(len(now))
	flags := func(i uint64) uint32 {
		if bytes.Equal(now[i*size:(i+1)*size], then[i*size:(i+1)*size]) {
			return e.Flags&^present | InParent
		}
		return e.Flags
	}
	for i := uint64(0); i < pages; {
		same, n := flags(i), uint64(1)
		for i+n < pages && flags(i+n) == same {
			n++
		}
		if err := c.emit(e, at+i*size, n, same); err != nil {
			return err
		}
		i += n
	}
	return nil
}

// emit adds pages to the pagemap of the difference. Entries of the dump are divided, and not
// joined.
func (c *comparer) emit(of Entry, at, pages uint64, flags uint32) error {
	entry := Entry{Address: at, Pages: pages, Flags: flags}
	if entry.isHere() {
		if c.changed += int64(pages * PageSize()); c.changed > c.limit {
			return ErrDiffers
		}
	}
	all := &c.difference.Map.Entries
	if n := len(*all); n > 0 {
		last := &(*all)[n-1]
		if last.Address >= of.Address && last.end() == at && last.Flags == flags {
			last.Pages += pages
			return nil
		}
		if n == maxEntries {
			return ErrDiffers
		}
	}
	*all = append(*all, entry)
	return nil
}

// WriteChanged writes what has changed: the file of pages of the difference.
func (d Difference) WriteChanged(ctx context.Context, to io.Writer) error {
	buffered := bufio.NewWriterSize(to, pieceBytes)
	offset := int64(0) // in the pages of the dump
	for _, e := range d.Map.Entries {
		bytes := int64(e.Pages * PageSize())
		if e.isHere() {
			n, err := io.Copy(buffered, io.NewSectionReader(d.from.Pages, offset, bytes))
			if err == nil && n < bytes {
				err = io.ErrUnexpectedEOF
			}
			if err := cmp.Or(err, ctx.Err()); err != nil {
				return err
			}
		}
		if e.isHere() || e.Flags&InParent != 0 {
			offset += bytes
		}
	}
	return buffered.Flush()
}
