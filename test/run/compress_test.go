package run

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// TestGPUMemoryIsCompressedOnItsWay, and comes back from there.
func TestGPUMemoryIsCompressedOnItsWay(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		plain := newCUDAWorld(t, "--flat", "8")
		r := plain.run(once...)
		r.verified(1)
		size := plain.gpuMemory()
		plain.finish(r)

		w := newCUDAWorld(t, "--flat", "8")
		w.flags = append(w.flags, "--compress", "zstd")
		r = w.run()
		r.verified(2)
		r.signal(unix.SIGTERM)
		r.ends(75)
		if small := w.gpuMemory(); small*10 > size*9 {
			t.Errorf("%d bytes are stored, compressed %d", size, small)
		}
		r = w.goesOn(w.newest())
		w.checks()
		w.finish(r)
	})
}

// gpuMemory returns how much the newest checkpoint holds of it.
func (w *world) gpuMemory() (size int64) {
	w.t.Helper()
	err := filepath.WalkDir(filepath.Join(w.dir, "checkpoints", w.newest()), func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(entry.Name(), "cucriu-pages-") {
			var info fs.FileInfo
			if info, err = entry.Info(); err == nil {
				size += info.Size()
			}
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return size
}
