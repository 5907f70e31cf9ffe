package durable

import (
	"context"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// DropCache drops a file from the page cache, so that it is read from the disk next.
func DropCache(path string) {
	f, err := openToRead(path)
	if err != nil {
		return // who reads it says so
	}
	defer f.Close()
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

func openToRead(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

// ReadAhead reads files into the page cache for whoever needs them next, in this order, until all are there or ctx
// ends. It reads no more of a file that cannot be read, and nothing more where the kernel does not say what is
// there: before Linux 6.5, and on some file systems, such as overlays.
func ReadAhead(ctx context.Context, paths []string) {
	const readers, size = 8, 8 << 20
	type piece struct {
		path         string
		offset, size int64
	}
	pieces := make(chan piece)
	var all sync.WaitGroup
	var isUnseen atomic.Bool
	for range readers {
		all.Go(func() {
			buffer := make([]byte, step)
			for p := range pieces {
				if !isUnseen.Load() && !readPiece(p.path, p.offset, p.size, buffer) {
					isUnseen.Store(true)
				}
			}
		})
	}
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		for offset := int64(0); offset < info.Size() && ctx.Err() == nil && !isUnseen.Load(); offset += size {
			pieces <- piece{path, offset, min(size, info.Size()-offset)}
		}
	}
	close(pieces)
	all.Wait()
}

// step is what a kernel reads ahead at most when it is asked to, with small limits of a disk.
const step = 1 << 20

// readPiece reads a piece of a file that is not in the page cache yet, in steps. It reports whether the kernel says
// what is there.
func readPiece(path string, offset, size int64, buffer []byte) bool {
	f, err := openToRead(path)
	if err != nil {
		return true
	}
	defer f.Close()
	there := func() (bytes uint64, err error) {
		var cached unix.Cachestat_t
		of := unix.CachestatRange{Off: uint64(offset), Len: uint64(size)}
		err = unix.Cachestat(uint(f.Fd()), &of, &cached, 0)
		return cached.Cache * uint64(os.Getpagesize()), err
	}
	before, err := there()
	if err != nil || before >= uint64(size) {
		return err == nil
	}
	// The disk is given all of it at once: for a read of a new descriptor, the kernel has only a little under way.
	for at := int64(0); at < size; at += step {
		_ = unix.Fadvise(int(f.Fd()), offset+at, min(step, size-at), unix.FADV_WILLNEED)
	}
	read := 0
	for at := int64(0); at < size && err == nil; at += step {
		var n int
		n, err = f.ReadAt(buffer[:min(step, size-at)], offset+at)
		read += n
	}
	after, err := there()
	return err == nil && (after > 0 || read == 0)
}
