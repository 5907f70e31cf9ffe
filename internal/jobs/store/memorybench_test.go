package store

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkPublishMemory publishes a dump of a process of 1 GiB that is staged in memory. The
// store is on the disk of $TMPDIR. "first" has nothing to be compared with.
func BenchmarkPublishMemory(b *testing.B) {
	const pages = 1 << 30 / page
	first := newProcess("7", 1, 1, 1<<10)
	for _, percent := range []int{-1, 0, 2, 10, 25, 50, 100} {
		name, now := "first", first
		if percent >= 0 {
			var change []int
			for i := range pages {
				if i*37%100 < percent {
					change = append(change, i)
				}
			}
			name, now = fmt.Sprintf("changed=%d%%", percent), first.with(1, change...)
		}
		b.Run(name, func(b *testing.B) {
			s := openStore(b, filepath.Join(b.TempDir(), "job"))
			memory := onTmpfs(b, "size=3g")
			if percent >= 0 {
				_, err := s.Publish(b.Context(), stageMemory(b, filepath.Join(memory, "first"), first), goodInfo(b))
				must(b, err)
				must(b, os.RemoveAll(filepath.Join(memory, "first")))
			}
			staged := stageMemory(b, filepath.Join(memory, "second"), now)
			var written int64
			for b.Loop() {
				c, err := s.Publish(b.Context(), staged, goodInfo(b))
				must(b, err)
				written = c.New
				b.StopTimer()
				must(b, s.Remove(c.Name))
				b.StartTimer()
			}
			b.SetBytes(pages * page)
			b.ReportMetric(float64(written)/(1<<20), "MiB-written")
		})
	}
}
