package pages

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
)

// Listing names the files that hold the memory of one process, with their sizes and the
// checksum of the index. A file that was damaged, cut off or exchanged since does not match
// it.
type Listing struct {
	ID            string  `json:"id"` // of the dump: 16 hexadecimal digits
	Bytes         uint64  `json:"bytes"`
	IndexBytes    int64   `json:"index_bytes"`
	IndexChecksum uint32  `json:"index_crc32c"`
	ShardBytes    []int64 `json:"shard_bytes"`
}

// NewListing returns a listing that names files which [Create] is still to create.
func NewListing(id string, shards int) *Listing {
	return &Listing{ID: id, ShardBytes: make([]int64, shards)}
}

const (
	maxShards = 256
	// maxIndexBytes is the size of an index of 4 TiB of memory.
	maxIndexBytes = headerSize + recordSize*(4<<40/ChunkSize)
	filePrefix    = "cucriu-pages-"
)

// FilePattern matches the names of all files of pages: see [filepath.Match].
const FilePattern = filePrefix + "*.img"

var (
	idPattern = regexp.MustCompile(`^[0-9a-f]{16}$`)
	// filePattern matches the names of all files of pages.
	filePattern = regexp.MustCompile(`^` + filePrefix + `([0-9a-f]{16})-[0-9]+(-[0-9]+)?\.img$`)
)

// ValidateNames refuses a listing whose files [NewListing] cannot have named.
func (l *Listing) ValidateNames() error {
	switch {
	case !idPattern.MatchString(l.ID):
		return fmt.Errorf("the id of the pages is %q", l.ID)
	case len(l.ShardBytes) == 0 || len(l.ShardBytes) > maxShards:
		return fmt.Errorf("the pages are in %d shards", len(l.ShardBytes))
	}
	return nil
}

// Validate refuses a listing that no [Writer] can have made.
func (l *Listing) Validate() error {
	if err := l.ValidateNames(); err != nil {
		return err
	}
	if l.IndexBytes < headerSize || l.IndexBytes > maxIndexBytes || (l.IndexBytes-headerSize)%recordSize != 0 {
		return fmt.Errorf("the index of the pages has %d bytes", l.IndexBytes)
	}
	for _, size := range l.ShardBytes {
		if size < headerSize || size > math.MaxInt64/maxShards {
			return fmt.Errorf("a shard of the pages has %d bytes", size)
		}
	}
	return nil
}

// Files returns the number of files.
func (l *Listing) Files() int { return 1 + len(l.ShardBytes) }

// Names returns the names of the files of a process, the index first.
func (l *Listing) Names(pid int) []string {
	base := filePrefix + l.ID + "-" + strconv.Itoa(pid)
	names := []string{base + ".img"}
	for i := range l.ShardBytes {
		names = append(names, base+"-"+strconv.Itoa(i)+".img")
	}
	return names
}
