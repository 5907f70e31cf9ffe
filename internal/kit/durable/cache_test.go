package durable

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// inCache returns how much of a file is in the page cache.
func inCache(t *testing.T, path string) uint64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var there unix.Cachestat_t
	err = unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &there, 0)
	if errors.Is(err, unix.ENOSYS) {
		t.Skip("needs Linux 6.5: nothing is read ahead before")
	}
	if err != nil {
		t.Fatal(err)
	}
	return there.Cache * uint64(os.Getpagesize())
}

func TestFilesAreReadAhead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	const size = 20<<20 + 5
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	unix.Sync()
	DropCache(path)
	before := inCache(t, path)
	ended, end := context.WithCancel(t.Context())
	end()
	ReadAhead(ended, []string{path})
	if now := inCache(t, path); now != before {
		t.Errorf("%d bytes are there, want %d", now, before)
	}
	ReadAhead(t.Context(), []string{filepath.Join(t.TempDir(), "missing"), t.TempDir(), path})
	if now := inCache(t, path); now < size {
		t.Errorf("%d bytes are there, of %d (%d before)", now, size, before)
	}
}
