package store

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"

	"cucriu/internal/criuimage"
)

// memoryBases returns the checkpoints with whose memory a new one may be compared, the newest
// first.
func (s *Store) memoryBases() ([]Checkpoint, error) {
	all, err := s.Checkpoints()
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(c Checkpoint) bool { return c.Err != nil || c.GivenUp != "" })
	slices.Reverse(all)
	return all[:min(len(all), baseCheckpoints)], nil
}

// memoryBase is the memory of a process in an earlier checkpoint.
type memoryBase struct {
	*criuimage.Memory
	checkpoint    string
	pagemap       *os.File
	pagemapRecord File
	pagesRecord   File
}

func (b *memoryBase) close() { _ = errors.Join(b.Close(), b.pagemap.Close()) }

// openMemoryBase opens the memory that a checkpoint has for a pagemap: in its parent, if it is a
// difference there.
func openMemoryBase(c Checkpoint, name string) (b *memoryBase, err error) {
	root, err := os.OpenRoot(c.Dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	records := make(map[string]File)
	for _, f := range c.Files {
		records[f.Name] = f
	}
	dir := ""
	if _, is := records[parentDir+"/"+name]; is {
		dir = parentDir + "/"
	}
	b = &memoryBase{checkpoint: c.Name, pagemapRecord: records[dir+name]}
	if b.pagemap, _, err = criuimage.OpenIn(root, dir+name); err != nil {
		return nil, err
	}
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	n, err := io.Copy(sum, io.LimitReader(b.pagemap, b.pagemapRecord.Bytes+1))
	if err == nil && (n != b.pagemapRecord.Bytes || sum.Sum32() != b.pagemapRecord.CRC32C) {
		err = fmt.Errorf("%s%s is not what was written", dir, name)
	}
	if err == nil {
		b.Memory, err = criuimage.OpenMemory(root, dir+name)
	}
	if err != nil {
		return nil, errors.Join(err, b.pagemap.Close())
	}
	b.pagesRecord = records[b.PagesName]
	if b.Bytes != b.pagesRecord.Bytes {
		err = fmt.Errorf("%s: it has %d bytes, and %d were written", b.pagesRecord.Name, b.Bytes, b.pagesRecord.Bytes)
		b.close()
	}
	return b, err
}
