package pages

import (
	"errors"
	"fmt"
)

// finish writes the index.
func (w *rewriter) finish() (Rewritten, error) {
	l := Listing{ID: w.options.ID}
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
		if err := s.file.Sync(); err != nil { // some file systems tell only the writer that a write failed
			return Rewritten{}, fmt.Errorf("pages: %w", err)
		}
		own[number] = uint32(len(l.Origins))
		l.Origins, l.ShardBytes = append(l.Origins, s.origin), append(l.ShardBytes, s.end)
	}
	for i := range w.records {
		r := &w.records[i]
		if at := w.plan.places[i]; at != none {
			r.shard = numbers[w.plan.pool.places[at].shard]
		} else if r.codec != Zero {
			r.shard = own[r.shard]
		}
	}
	data := l.addIndex(w.options.PID, w.records)
	index, err := createFile(w.options.Dir, l.Names(w.options.PID)[0])
	if err != nil {
		return Rewritten{}, err
	}
	_, err = index.Write(data)
	if err = errors.Join(err, index.Sync(), index.Close()); err != nil {
		return Rewritten{}, fmt.Errorf("pages: %w", err)
	}
	result.Listing = l
	return result, l.Validate()
}

func (w *rewriter) close() {
	for _, s := range w.shards {
		if s.file != nil {
			s.file.Close()
		}
	}
}
