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
	// Origins says of each shard where it was written. It is empty if all of them were
	// written together with the index.
	Origins []Origin `json:"origins,omitempty"`
}

// Origin says which dump wrote a shard, for which process. A later dump may use it as well:
// see [Rewrite].
type Origin struct {
	ID    string `json:"id"`
	PID   int    `json:"pid"`
	Shard int    `json:"shard"`
}

// name returns the name of the shard's file.
func (o Origin) name() string {
	return filePrefix + o.ID + "-" + strconv.Itoa(o.PID) + "-" + strconv.Itoa(o.Shard) + ".img"
}

func (o Origin) validate() error {
	if !idPattern.MatchString(o.ID) || o.PID <= 0 || o.Shard < 0 || o.Shard >= maxShards {
		return fmt.Errorf("invalid shard %d of process %d of dump %q", o.Shard, o.PID, o.ID)
	}
	return nil
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
	case len(l.Origins) > 0 && len(l.Origins) != len(l.ShardBytes):
		return fmt.Errorf("the pages are in %d shards, but %d are listed", len(l.ShardBytes), len(l.Origins))
	}
	seen := make(map[Origin]bool)
	for _, o := range l.Origins {
		if err := o.validate(); err != nil {
			return err
		}
		if seen[o] {
			return fmt.Errorf("%s is listed twice", o.name())
		}
		seen[o] = true
	}
	return nil
}

// Validate refuses a listing that no [Writer] can have made.
func (l *Listing) Validate() error {
	if err := l.ValidateNames(); err != nil {
		return err
	}
	if l.IndexBytes < headerSize || l.IndexBytes > maxIndexBytes || (l.IndexBytes-headerSize)%recordSize != 0 {
		return fmt.Errorf("invalid size of the page index: %d bytes", l.IndexBytes)
	}
	for _, size := range l.ShardBytes {
		if size < headerSize || size > math.MaxInt64/maxShards {
			return fmt.Errorf("invalid size of a page shard: %d bytes", size)
		}
	}
	return nil
}

// Files returns the number of files.
func (l *Listing) Files() int { return 1 + len(l.ShardBytes) }

// Names returns the names of the files of a process, the index first.
func (l *Listing) Names(pid int) []string {
	names := []string{filePrefix + l.ID + "-" + strconv.Itoa(pid) + ".img"}
	for i := range l.ShardBytes {
		names = append(names, l.origin(pid, i).name())
	}
	return names
}

// Sizes returns the sizes of the files, in the order of their names.
func (l *Listing) Sizes() []int64 { return append([]int64{l.IndexBytes}, l.ShardBytes...) }

// origin returns where a shard of a process was written.
func (l *Listing) origin(pid, shard int) Origin {
	if shard < len(l.Origins) {
		return l.Origins[shard]
	}
	return Origin{ID: l.ID, PID: pid, Shard: shard}
}
