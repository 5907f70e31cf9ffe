package files

import (
	"hash/crc32"
	"os"
)

// endingSize is how much of a file's end is looked at.
const endingSize = 4096 // bytes

// endingOf describes the end of a file's first size bytes.
func endingOf(f *os.File, size int64) (*ending, error) {
	data := make([]byte, min(size, endingSize))
	if _, err := f.ReadAt(data, size-int64(len(data))); err != nil {
		return nil, readError(err)
	}
	return &ending{Length: int64(len(data)), CRC32C: crc32.Checksum(data, castagnoli())}, nil
}

// isAt reports whether a file that is at least as long has this end at a size.
func (e *ending) isAt(f *os.File, size int64) (bool, error) {
	now, err := endingOf(f, size)
	return err == nil && *now == *e, err
}
