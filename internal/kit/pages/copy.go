package pages

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"cucriu/internal/kit/proc"
)

// Sink takes the chunks of a process's memory.
type Sink interface {
	// Workers returns how many workers may call Put at the same time.
	Workers() int
	// Put stores a chunk for a worker, 0 ≤ worker < Workers(). The sink must not use the
	// chunk's data after Put has returned.
	Put(worker int, chunk Chunk) error
}

// Source gives the chunks of a process's memory.
type Source interface {
	Chunks() int
	// Get reads chunk i, 0 ≤ i < Chunks(). It may use buffer, which holds [ChunkSize]
	// bytes, for the data of the chunk.
	Get(i int, buffer []byte) (Chunk, error)
}

// Copy copies ranges of a process's memory to a sink. The process must be stopped. Each
// worker needs memory for one chunk, and for one more if it compresses.
func Copy(ctx context.Context, from *proc.Process, ranges []proc.Range, to Sink, codec Codec) error {
	pieces := cut(ranges)
	return work(ctx, to.Workers(), len(pieces), func(worker int) (func(int) error, func(), error) {
		coder, err := newCoder(codec)
		if err != nil {
			return nil, nil, err
		}
		buffer := make([]byte, ChunkSize)
		do := func(i int) error {
			memory := buffer[:pieces[i].Size()]
			if err := from.ReadMemory(memory, pieces[i].Start); err != nil {
				return err
			}
			return to.Put(worker, coder.encode(pieces[i].Start, memory))
		}
		return do, coder.close, nil
	})
}

// Fill checks chunks and writes them back to where they were copied from. It skips chunks
// of zeros: that memory is fresh, or unchanged. It uses at least one worker.
func Fill(ctx context.Context, from Source, to *proc.Process, workers int) error {
	return decodeAll(ctx, from, workers, func(_ int, chunk Chunk, memory []byte, err error) error {
		if err != nil {
			return err
		}
		return to.WriteMemory(memory, chunk.Address)
	})
}

// Check checks chunks, as [Fill] does. It uses at least one worker.
func Check(ctx context.Context, from Source, workers int) error {
	return decodeAll(ctx, from, workers, func(_ int, _ Chunk, _ []byte, err error) error { return err })
}

// decodeAll checks all chunks that are not zeros, and calls use with each, its memory, and what is
// wrong with it.
func decodeAll(ctx context.Context, from Source, workers int, use func(i int, chunk Chunk, memory []byte, err error) error) error {
	return work(ctx, max(workers, 1), from.Chunks(), func(int) (func(int) error, func(), error) {
		buffer, coder := make([]byte, ChunkSize), &coder{}
		do := func(i int) error {
			chunk, err := from.Get(i, buffer)
			if err != nil || chunk.Codec == Zero {
				return err
			}
			memory, err := coder.decode(chunk)
			return use(i, chunk, memory, err)
		}
		return do, coder.close, nil
	})
}

// cut cuts ranges into pieces that end at multiples of the chunk size.
func cut(ranges []proc.Range) []proc.Range {
	var pieces []proc.Range
	for _, r := range ranges {
		for start := r.Start; start < r.End; {
			end := min((start/ChunkSize+1)*ChunkSize, r.End)
			pieces = append(pieces, proc.Range{Start: start, End: end})
			start = end
		}
	}
	return pieces
}

// batch is how many chunks a worker takes at once: the chunks of one huge page, which the
// kernel allocates when the first of them is written.
const batch = 2 << 20 / ChunkSize

// work calls do for 0 ≤ i < n in several workers. Each worker has a do of its own, which
// begin makes. work returns the first error and calls no do after it.
func work(ctx context.Context, workers, n int, begin func(worker int) (do func(i int) error, end func(), err error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for worker := range min(workers, (n+batch-1)/batch) {
		wg.Go(func() {
			do, end, err := begin(worker)
			if err != nil {
				cancel(fmt.Errorf("begin to copy: %w", err))
				return
			}
			defer end()
			for {
				end := int(next.Add(batch))
				for i := end - batch; i < min(end, n) && ctx.Err() == nil; i++ {
					if err := do(i); err != nil {
						cancel(err)
					}
				}
				if end >= n || ctx.Err() != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}
