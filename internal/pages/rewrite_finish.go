package pages

import (
	"errors"
	"fmt"
	"slices"
)

// finish writes the index, and waits until all of it is on disk.
func (w *rewriter) finish() (Rewritten, error) {
	l := Listing{ID: w.options.ID, IndexBytes: headerSize + recordSize*int64(len(w.records))}
	var result Rewritten
	numbers := make(map[uint32]uint32) // in the listing, of a shard in the pool
	for _, s := range w.plan.pool.shards {
		if err := s.damaged(); err != nil {
			result.Damaged = append(result.Damaged, err)
		}
	}
	for _, number := range w.plan.shards() {
		s := w.plan.pool.shards[number]
		numbers[number] = uint32(len(l.Origins))
		l.Origins, l.ShardBytes = append(l.Origins, s.origin), append(l.ShardBytes, s.bytes)
		result.Linked = append(result.Linked, s.origin.name())
	}
	if err := w.dropUnused(result.Linked); err != nil {
		return Rewritten{}, err
	}
	if len(l.Origins) == 0 { // a listing has at least one shard
		if err := w.shards[0].open(w.options, 0); err != nil {
			return Rewritten{}, err
		}
	}
	own := make([]uint32, len(w.shards)) // in the listing
	for number := range w.shards {
		s := &w.shards[number]
		if s.file == nil {
			continue
		}
		if err := s.file.Sync(); err != nil {
			return Rewritten{}, fmt.Errorf("pages: %w", err)
		}
		own[number] = uint32(len(l.Origins))
		l.Origins, l.ShardBytes = append(l.Origins, s.origin), append(l.ShardBytes, s.end)
		result.Written = append(result.Written, WrittenFile{s.origin.name(), s.end, s.sum})
	}
	for i := range w.records {
		r := &w.records[i]
		l.Bytes += uint64(r.chunk.Size)
		if at := w.plan.places[i]; at != none {
			r.shard = numbers[w.plan.pool.places[at].shard]
		} else if r.chunk.Codec != Zero {
			r.shard = own[r.shard]
		}
	}
	index, err := w.writeIndex(&l)
	if err != nil {
		return Rewritten{}, err
	}
	result.Listing, result.Written = l, slices.Insert(result.Written, 0, index)
	return result, l.Validate()
}

// writeIndex writes the index of the records.
func (w *rewriter) writeIndex(l *Listing) (WrittenFile, error) {
	data := slices.Grow(l.indexHeader(w.options.PID), recordSize*len(w.records))
	for i := range w.records {
		data = w.records[i].append(data)
	}
	l.IndexChecksum = checksum(data)
	written := WrittenFile{Name: l.Names(w.options.PID)[0], Bytes: int64(len(data)), Checksum: l.IndexChecksum}
	f, err := createFile(w.options.Dir, written.Name)
	if err != nil {
		return written, err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return written, errors.Join(err, f.Close())
}

// close closes the shards.
func (w *rewriter) close() {
	for _, s := range w.shards {
		if s.file != nil {
			s.file.Close()
		}
	}
}
