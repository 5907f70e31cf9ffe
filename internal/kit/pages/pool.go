package pages

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
)

// Pool is chunks that are stored already, in the shards of earlier dumps. The zero Pool is
// empty. Lookups match size and checksum; [Rewrite] then compares.
type Pool struct {
	shards []*poolShard
	places []record // sorted by checksum and size; without addresses, and with the shards of the pool
	known  map[FileID]uint32
	files  []*os.File
}

// poolShard is a shard in a pool.
type poolShard struct {
	origin Origin
	of     string // whose it is, for messages
	file   *os.File
	bytes  int64

	mutex  sync.Mutex
	damage error
}

// Add adds all chunks of a process in an image directory. of says whose they are, in
// messages. Files that are not what was written are refused, and nothing is added then.
func (p *Pool) Add(of, dir string, pid int, l *Listing) error {
	reader, err := Open(dir, pid, l)
	if err != nil {
		return err
	}
	p.files = append(p.files, reader.files...)
	numbers := make([]uint32, len(l.ShardBytes))
	for i := range numbers {
		if numbers[i], err = p.addShard(of, reader.files[1+i], l.origin(pid, i), l.ShardBytes[i]); err != nil {
			return err
		}
	}
	for i := range reader.Chunks() {
		r := reader.index.at(i)
		if r.codec == Zero {
			continue
		}
		r.address, r.shard = 0, numbers[r.shard]
		p.places = append(p.places, r)
	}
	slices.SortFunc(p.places, comparePlaces)
	p.places = slices.Compact(p.places)
	return nil
}

// addShard returns the number of a shard in the pool. Dumps may share one.
func (p *Pool) addShard(of string, file *os.File, origin Origin, bytes int64) (uint32, error) {
	info, err := file.Stat()
	if err != nil {
		return 0, fmt.Errorf("pages: %w", err)
	}
	id := Identify(info)
	if number, known := p.known[id]; known {
		return number, nil
	}
	if p.known == nil {
		p.known = make(map[FileID]uint32)
	}
	number := uint32(len(p.shards))
	p.shards = append(p.shards, &poolShard{origin: origin, of: of, file: file, bytes: bytes})
	p.known[id] = number
	return number, nil
}

func comparePlaces(a, b record) int {
	return cmp.Or(cmp.Compare(a.checksum, b.checksum), cmp.Compare(a.size, b.size), cmp.Compare(a.shard, b.shard), cmp.Compare(a.offset, b.offset))
}

// find returns which places may hold a chunk: those from first up to, not including, end.
func (p *Pool) find(chunk record) (first, end int) {
	least := record{checksum: chunk.checksum, size: chunk.size, offset: math.MinInt64}
	first, _ = slices.BinarySearchFunc(p.places, least, comparePlaces)
	for end = first; end < len(p.places) && p.places[end].checksum == chunk.checksum && p.places[end].size == chunk.size; end++ {
	}
	return first, end
}

func (p *Pool) read(at record, buffer []byte) (Chunk, error) {
	chunk := at.chunk()
	chunk.Data = buffer[:at.stored]
	if _, err := p.shards[at.shard].file.ReadAt(chunk.Data, at.offset); err != nil {
		return chunk, err
	}
	return chunk, nil
}

func (s *poolShard) note(err error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.damage == nil {
		s.damage = fmt.Errorf("%s: %s: %w", s.of, s.origin.name(), err)
	}
}

func (s *poolShard) damaged() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.damage
}

// Close closes the files.
func (p *Pool) Close() error { return closeAll(p.files) }
