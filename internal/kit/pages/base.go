package pages

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	"cucriu/internal/kit/proc"
)

// Base is what an earlier dump has stored of a process. The files of a new one may name its chunks instead of storing them
// again: then they are complete only together with those of the base. [Rewrite] makes complete ones of them.
type Base struct {
	*Reader
	PID     int // of the process in the earlier image
	Listing *Listing
}

// OpenBase opens a base in an image directory.
func OpenBase(dir string, pid int, l *Listing) (*Base, error) {
	reader, err := Open(dir, pid, l)
	if err != nil {
		return nil, err
	}
	return &Base{reader, pid, l}, nil
}

// Extend adds the shards of a base to a listing for a process's files that are still to be created. If there are too many,
// it fails and changes nothing.
func (l *Listing) Extend(pid int, base *Base) error {
	extended := *l
	extended.Origins, extended.ShardBytes = nil, slices.Concat(l.ShardBytes, base.Listing.ShardBytes)
	for i := range l.ShardBytes {
		extended.Origins = append(extended.Origins, l.origin(pid, i))
	}
	for i := range base.Listing.ShardBytes {
		extended.Origins = append(extended.Origins, base.Listing.origin(base.PID, i))
	}
	err := extended.ValidateNames()
	if err == nil {
		*l = extended
	}
	return err
}

// UseBase has the files name chunks of a base where [Writer.Reuse] says so.
func (w *Writer) UseBase(base *Base) { w.base = base }

// Reuse has the files name the chunks that the base has of memory at before, for as much memory at now. Both
// begin and end at multiples of [ChunkSize], and the calls come in the order of the addresses. If the memory is copied all the same, it
// must be what the base has.
func (w *Writer) Reuse(now proc.Range, before uint64) error {
	then := proc.Range{Start: before, End: before + now.Size()}
	if w.base == nil || now.Start%ChunkSize != before%ChunkSize || !w.base.Covers(then) {
		return fmt.Errorf("the image that this one is based on does not have the memory at %#x", before)
	}
	first, end := w.base.chunksIn(then)
	for i := first; i < end; i++ {
		r := w.base.index.at(i)
		r.address += now.Start - before
		if r.codec != Zero {
			r.shard += uint32(len(w.shards))
		}
		w.reused = append(w.reused, r)
	}
	return nil
}

// Covers reports whether the chunks cover all of a range, and none of them only a part.
func (r *Reader) Covers(at proc.Range) bool {
	first, end := r.chunksIn(at)
	next := at.Start
	for i := first; i < end && next == r.index.at(i).address; i++ {
		next += uint64(r.index.at(i).size)
	}
	return next == at.End
}

// chunksIn returns the numbers of the chunks that begin in a range.
func (r *Reader) chunksIn(at proc.Range) (first, end int) {
	first = sort.Search(r.Chunks(), func(i int) bool { return r.index.at(i).address >= at.Start })
	return first, max(first, sort.Search(r.Chunks(), func(i int) bool { return r.index.at(i).address >= at.End }))
}

// At returns the chunks that the base has of memory at before, as memory at now.
func (b *Base) At(now proc.Range, before uint64) Source {
	first, end := b.chunksIn(proc.Range{Start: before, End: before + now.Size()})
	return &shifted{part{b.Reader, end - first, func(i int) int { return first + i }}, now.Start - before}
}

// shifted are chunks that belong to other addresses.
type shifted struct {
	part
	by uint64
}

func (s *shifted) Get(i int, buffer []byte) (Chunk, error) {
	chunk, err := s.part.Get(i, buffer)
	chunk.Address += s.by
	return chunk, err
}

// reusedFor returns the chunk that is reused for the memory at an address.
func (w *Writer) reusedFor(address uint64) (record, bool) {
	at, found := slices.BinarySearchFunc(w.reused, address, func(r record, address uint64) int { return cmp.Compare(r.address, address) })
	if !found {
		return record{}, false
	}
	return w.reused[at], true
}
