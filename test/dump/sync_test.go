package dump

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// TestAnImageIsOnDiskBeforeItsJobEnds: criu does not wait for a disk, and a job whose image is only in the page
// cache is lost with the host.
func TestAnImageIsOnDiskBeforeItsJobEnds(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		dir, err := os.MkdirTemp("/var/tmp", "cucriu-test-*") // not in memory, as the other temporary files may be
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		if run := host.TryDump(job, dir); run.Err != nil {
			t.Fatal("criu dump failed")
		}
		images, err := filepath.Glob(filepath.Join(dir, "*.img"))
		if err != nil || len(images) < 10 {
			t.Fatalf("there are %d images: %v", len(images), err)
		}
		for _, name := range images {
			if n := dirtyPages(t, name); n > 0 {
				t.Errorf("%d pages of %s are not on disk", n, filepath.Base(name))
			}
		}
		// Else the test shows nothing.
		fresh := filepath.Join(dir, "fresh")
		if err := os.WriteFile(fresh, make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		if dirtyPages(t, fresh) == 0 {
			t.Skip("needs a disk below /var/tmp")
		}
		host.Restore(dir)
		job.Runs()
	})
}

// dirtyPages returns how many pages of a file are only in the page cache.
func dirtyPages(t *testing.T, path string) uint64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var stat unix.Cachestat_t
	if err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &stat, 0); err != nil {
		t.Skipf("needs cachestat(2), of Linux 6.5: %v", err)
	}
	return stat.Dirty + stat.Writeback
}
