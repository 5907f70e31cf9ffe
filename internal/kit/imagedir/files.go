package imagedir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/proc"
)

// File is a file of an image, as it was written.
type File struct {
	Name   string `json:"name"` // in the image directory, with slashes
	Bytes  int64  `json:"bytes"`
	CRC32C uint32 `json:"crc32c"`
}

// FileError says which file of an image is damaged.
type FileError struct {
	Name string
	Err  error
}

// Error names the file.
func (e *FileError) Error() string { return fmt.Sprintf("%s: %v", e.Name, e.Err) }

func (e *FileError) Unwrap() error { return e.Err }

const (
	maxFiles    = 1 << 20
	maxName     = 1024     // bytes
	pieceBytes  = 16 << 20 // of a file, are read by one thread
	bufferBytes = 256 << 10
)

// IsFileName reports whether a file of an image may have this name. It leads nowhere but into the image
// directory.
func IsFileName(name string) bool {
	return name != "" && name != "." && len(name) <= maxName && name == proc.Printable(name) && path.Clean(name) == name &&
		filepath.IsLocal(name) && !strings.ContainsRune(name, '\\')
}

// ValidateFiles refuses a list that nobody can have written, and returns how many bytes all files have.
func ValidateFiles(files []File, isName func(string) bool) (total int64, err error) {
	if len(files) == 0 || len(files) > maxFiles {
		return 0, fmt.Errorf("it has %d files", len(files))
	}
	seen := make(map[string]bool)
	for _, f := range files {
		switch {
		case !isName(f.Name):
			return 0, fmt.Errorf("invalid file name %.80q", f.Name)
		case seen[f.Name]:
			return 0, fmt.Errorf("%s is listed twice", f.Name)
		case f.Bytes < 0 || f.Bytes > math.MaxInt64-total:
			return 0, fmt.Errorf("%s has %d bytes", f.Name, f.Bytes)
		}
		seen[f.Name] = true
		total += f.Bytes
	}
	return total, nil
}

// CheckFiles reads files of an image, with so many threads, and fails with a [FileError] if one is not as
// it was written. It calls read with how many bytes it has just read, from several goroutines.
func CheckFiles(ctx context.Context, root *os.Root, files []File, workers int, read func(bytes int)) error {
	sums, err := sumFiles(ctx, root, files, workers, read)
	if err != nil {
		return err
	}
	for i, f := range files {
		if sums[i] != f.CRC32C {
			return &FileError{f.Name, errors.New("checksum mismatch")}
		}
	}
	return nil
}

// Open opens the file, and fails with a [FileError] if it does not have its size.
func (f File) Open(root *os.Root) (*os.File, error) {
	file, info, err := criuimage.OpenIn(root, f.Name)
	if err == nil && info.Size() != f.Bytes {
		file.Close()
		err = fmt.Errorf("it has %d bytes, but %d were written", info.Size(), f.Bytes)
	}
	if err != nil {
		return nil, f.damaged(err)
	}
	return file, nil
}

func (f File) damaged(err error) error {
	if durable.HostRemedy(err) != "" {
		return err
	}
	if at, ok := errors.AsType[*os.PathError](err); ok && at.Path == f.Name { // which the other error names
		err = at.Err
	}
	return &FileError{f.Name, err}
}

// sumFiles returns the CRC-32C of files that have the sizes of the list. Threads read pieces: most of an
// image may be one file.
func sumFiles(ctx context.Context, root *os.Root, files []File, workers int, read func(bytes int)) ([]uint32, error) {
	sums := make([]uint32, len(files))
	var mutex sync.Mutex
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(max(workers, 1))
	for i, f := range files {
		for at := int64(0); inner.Err() == nil && (at == 0 || at < f.Bytes); at += pieceBytes {
			group.Go(func() error {
				sum, err := sumPiece(inner, root, f, at, read)
				mutex.Lock()
				defer mutex.Unlock()
				sums[i] ^= sum
				return err
			})
		}
	}
	return sums, cmp.Or(group.Wait(), context.Cause(ctx))
}

// sumPiece reads the piece of a file at an offset, and returns its share of the file's checksum.
func sumPiece(ctx context.Context, root *os.Root, of File, at int64, read func(bytes int)) (uint32, error) {
	f, err := of.Open(root)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	sum, left := uint32(0), min(pieceBytes, of.Bytes-at)
	rest := of.Bytes - at - left
	for buffer := make([]byte, min(bufferBytes, left)); left > 0; {
		n, err := f.ReadAt(buffer[:min(int64(len(buffer)), left)], at)
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		if n == 0 {
			return 0, of.damaged(cmp.Or(err, io.ErrUnexpectedEOF))
		}
		sum = crc32.Update(sum, durable.Castagnoli, buffer[:n])
		at, left = at+int64(n), left-int64(n)
		read(n)
	}
	return shift(sum, rest), nil
}

// shift returns what a checksum adds to that of a longer text which has n more bytes behind it: the
// checksum of a text is the exclusive or of what its pieces add. A checksum is a polynomial over GF(2), with
// its highest power in the lowest bit, and n bytes more multiply it by x to the power of 8n.
func shift(sum uint32, n int64) uint32 {
	power := uint32(1) << (31 - 8)
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			sum = multiply(sum, power)
		}
		power = multiply(power, power)
	}
	return sum
}

// multiply multiplies polynomials modulo that of CRC-32C.
func multiply(a, b uint32) (product uint32) {
	for bit := uint32(1) << 31; bit != 0; bit >>= 1 {
		if a&bit != 0 {
			product ^= b
		}
		carry := b & 1
		b >>= 1
		if carry != 0 {
			b ^= crc32.Castagnoli
		}
	}
	return product
}
