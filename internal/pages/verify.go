package pages

import (
	"context"
	"fmt"
	"path/filepath"
)

// Verify reads all chunks, and fails if one is damaged. It calls read with the bytes of each
// chunk as it is stored and the name of its file, from several goroutines, and stops if that
// fails. It uses at least one worker.
func (r *Reader) Verify(ctx context.Context, workers int, read func(stored int, file string) error) error {
	return work(ctx, max(workers, 1), r.Chunks(), func(int) (func(int) error, func(), error) {
		buffer, coder := make([]byte, ChunkSize), &coder{}
		do := func(i int) error {
			at := r.index.at(i)
			if at.chunk.Codec == Zero {
				return nil
			}
			chunk, err := r.Get(i, buffer)
			if err != nil {
				return err
			}
			name := filepath.Base(r.files[1+at.shard].Name())
			if _, err := coder.decode(chunk); err != nil {
				return fmt.Errorf("%s at %d: %w", name, at.offset, err)
			}
			return read(len(chunk.Data), name)
		}
		return do, coder.close, nil
	})
}
