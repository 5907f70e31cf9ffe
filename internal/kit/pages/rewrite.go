package pages

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// RewriteOptions say where and how [Rewrite] writes.
type RewriteOptions struct {
	Dir     string
	ID      string // of the new files
	PID     int    // of the process
	Workers int    // at least one is used
	// Codec is how chunks that are not compressed yet are written. [Zero] leaves them as they
	// are.
	Codec Codec
	// Write, if it is set, is called before bytes are written, from several goroutines. Rewrite ends
	// if it fails.
	Write func(bytes int) error
}

// Rewritten is what [Rewrite] has made.
type Rewritten struct {
	Listing Listing
	// Linked are the names of the shards of earlier dumps that the listing names.
	Linked []string
	// Damaged says which shards of earlier dumps are damaged. They are not used.
	Damaged []error
}

// Rewrite writes new files for the pages of a process, from those that the plan was made for.
// What the plan finds in the pool is read, compared byte by byte, and not written if it is
// the same: the new files then name the shard that it is in, which gets a further name in the
// directory. What a process has several times is written once. Every chunk is checked on the way.
//
// If Rewrite fails, what it has written remains.
func Rewrite(ctx context.Context, p *Plan, o RewriteOptions) (Rewritten, error) {
	w := &rewriter{plan: p, options: o, records: make([]record, p.from.Chunks()), shards: make([]ownShard, 2*max(o.Workers, 1))}
	defer w.close()
	for _, number := range p.shards() {
		// A file system may have no links, or no more for this file.
		if err := w.link(p.pool.shards[number]); err != nil {
			p.exclude(number)
		}
	}
	var first, twins []int32
	for i, twin := range p.twins {
		if i == int(twin) {
			first = append(first, twin)
		} else {
			twins = append(twins, int32(i))
		}
	}
	if err := w.each(ctx, first); err != nil {
		return Rewritten{}, err
	}
	if err := w.each(ctx, twins); err != nil {
		return Rewritten{}, err
	}
	// Chunks that were the same lie in shards that have turned out to be damaged elsewhere.
	var again []int32
	for i, at := range p.places {
		if at != none && p.pool.shards[p.pool.places[at].shard].damaged() != nil {
			p.places[i] = none
			again = append(again, int32(i))
		}
	}
	if err := w.each(ctx, again); err != nil {
		return Rewritten{}, err
	}
	return w.finish()
}

// rewriter writes the files of one process.
type rewriter struct {
	plan    *Plan
	options RewriteOptions
	records []record   // shard is an own one, unless the plan has a place
	shards  []ownShard // two of each worker: for what has changed, and for what has not
	linked  []string   // names that were given to shards of earlier dumps
}

// link gives a shard a further name in the directory.
func (w *rewriter) link(s *poolShard) error {
	path := filepath.Join(w.options.Dir, s.origin.name())
	held := fmt.Sprintf("/proc/self/fd/%d", s.file.Fd())
	err := unix.Linkat(unix.AT_FDCWD, held, unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
	if err == nil {
		w.linked = append(w.linked, s.origin.name())
	}
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	have, err := os.Lstat(path) // another process uses it as well
	if err != nil {
		return err
	}
	want, err := s.file.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(have, want) {
		return fs.ErrExist
	}
	return nil
}

// dropUnused takes the names away again that are not needed after all.
func (w *rewriter) dropUnused(used []string) error {
	for _, name := range w.linked {
		if slices.Contains(used, name) {
			continue
		}
		if err := os.Remove(filepath.Join(w.options.Dir, name)); err != nil {
			return fmt.Errorf("pages: %w", err)
		}
	}
	return nil
}

// each puts chunks by their numbers.
func (w *rewriter) each(ctx context.Context, chunks []int32) error {
	return work(ctx, len(w.shards)/2, len(chunks), func(worker int) (func(int) error, func(), error) {
		codec := w.options.Codec
		if codec == Zero {
			codec = Raw
		}
		encoder, err := newCoder(codec)
		if err != nil {
			return nil, nil, err
		}
		staged, stored := &coder{}, &coder{}
		buffers := make([]byte, 2*ChunkSize)
		do := func(i int) error {
			return w.put(int(chunks[i]), worker, encoder, staged, stored, buffers)
		}
		return do, func() { encoder.close(); staged.close(); stored.close() }, nil
	})
}

// put writes a chunk, unless it is where the plan says.
func (w *rewriter) put(i, worker int, encoder, staged, stored *coder, buffers []byte) error {
	if at := w.plan.places[i]; at != none && w.plan.certain[i] && w.plan.pool.shards[w.plan.pool.places[at].shard].damaged() == nil {
		w.records[i] = w.plan.pool.places[at]
		w.records[i].address = w.plan.from.index.at(i).address
		return nil
	}
	chunk, err := w.plan.from.Get(i, buffers[:ChunkSize])
	if err != nil {
		return err
	}
	memory, err := staged.decode(chunk)
	if err != nil {
		return err
	}
	r := record{size: chunk.Size, codec: Zero}
	if chunk.Codec != Zero {
		if twin := int(w.plan.twins[i]); twin != i && w.isTwin(twin, memory, stored, buffers[ChunkSize:]) {
			r = w.records[twin]
		} else if w.isStored(i, memory, stored, buffers[ChunkSize:]) {
			r = w.plan.pool.places[w.plan.places[i]]
		} else if r, err = w.write(w.shardOf(i, worker), chunk, memory, encoder); err != nil {
			return err
		}
	}
	r.address = chunk.Address
	w.records[i] = r
	return nil
}

// isTwin reports whether a chunk, which is written already, is the same.
func (w *rewriter) isTwin(twin int, memory []byte, stored *coder, buffer []byte) bool {
	chunk, err := w.plan.from.Get(twin, buffer)
	if err != nil {
		return false
	}
	other, err := stored.decode(chunk)
	return err == nil && bytes.Equal(memory, other)
}

// isStored reports whether a chunk is where the plan says. If not, the plan says so
// afterwards.
func (w *rewriter) isStored(i int, memory []byte, stored *coder, buffer []byte) bool {
	if w.plan.places[i] == none {
		return false
	}
	at := w.plan.pool.places[w.plan.places[i]]
	shard := w.plan.pool.shards[at.shard]
	if shard.damaged() == nil {
		chunk, err := w.plan.pool.read(at, buffer)
		var other []byte
		if err == nil {
			chunk.Address = uint64(at.offset)
			other, err = stored.decode(chunk)
		}
		if err != nil {
			shard.note(fmt.Errorf("the chunk at %d: %w", at.offset, err))
		} else if bytes.Equal(memory, other) {
			return true
		}
	}
	w.plan.places[i] = none
	return false
}

// shardOf returns the shard in which a worker writes a chunk.
func (w *rewriter) shardOf(i, worker int) int {
	if w.plan.cold[i] {
		return 2*worker + 1
	}
	return 2 * worker
}

func (w *rewriter) write(shard int, chunk Chunk, memory []byte, encoder *coder) (record, error) {
	if chunk.Codec == Raw && w.options.Codec != Zero {
		chunk = encoder.encode(chunk.Address, memory)
	}
	if w.options.Write != nil {
		if err := w.options.Write(len(chunk.Data)); err != nil {
			return record{}, err
		}
	}
	s := &w.shards[shard]
	if err := s.open(w.options, shard); err != nil {
		return record{}, err
	}
	r := record{chunk.Address, chunk.Size, chunk.Checksum, uint32(len(chunk.Data)), uint32(shard), s.end, chunk.Codec}
	return r, s.write(chunk.Data)
}
