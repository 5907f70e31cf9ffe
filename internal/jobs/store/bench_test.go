package store

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"cucriu/internal/kit/pages"
)

// The size of the GPU state that is measured with, in chunks: 1 GiB.
const benchChunks = 1 << 30 / pages.ChunkSize

// BenchmarkPublish publishes a dump that is staged in memory. The store is on the disk of
// $TMPDIR, and has a checkpoint of which a part is the same.
func BenchmarkPublish(b *testing.B) {
	first := newMemory(1, benchChunks)
	for _, codec := range []pages.Codec{pages.Zero, pages.S2} {
		for _, same := range []int{0, 50, 99, 100} {
			b.Run(fmt.Sprintf("%v/same=%d%%", codec, same), func(b *testing.B) {
				s, err := Open(filepath.Join(b.TempDir(), "job"), OpenOptions{Codec: codec})
				must(b, err)
				defer s.Close()
				memory := onTmpfs(b, "size=3g")
				base, err := s.Publish(b.Context(), stageImage(b, filepath.Join(memory, "first"), 1, first), goodInfo(b))
				must(b, err)
				must(b, os.RemoveAll(filepath.Join(memory, "first")))
				var change []int
				for i := range benchChunks {
					if i*37%100 >= same {
						change = append(change, i)
					}
				}
				staged := stageImage(b, filepath.Join(memory, "second"), 2, changed(first, 2, change...))
				var written int64
				for b.Loop() {
					c, err := s.Publish(b.Context(), staged, goodInfo(b))
					must(b, err)
					written = c.New
					b.StopTimer()
					must(b, s.Remove(c.Name))
					b.StartTimer()
				}
				must(b, s.Check(b.Context(), base))
				b.SetBytes(benchChunks * pages.ChunkSize)
				b.ReportMetric(float64(written)/(1<<20), "MiB-written")
			})
		}
	}
}

// BenchmarkVerify reads a checkpoint from the disk of $TMPDIR, or from what caches it.
func BenchmarkVerify(b *testing.B) {
	s := openStore(b, filepath.Join(b.TempDir(), "job"))
	c := publish(b, s, 1, newMemory(1, benchChunks))
	for _, workers := range []int{1, 2} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			b.SetBytes(c.Bytes)
			for b.Loop() {
				must(b, s.Verify(b.Context(), c, workers, nil))
			}
		})
	}
}
