package pages

import (
	"cmp"
	"slices"
)

// maxLinked is how many shards of earlier dumps a process uses at most: a restore has all of
// them open at once. What is in others is written anew, and so they come together again.
const maxLinked = 32

// Plan says which chunks of a process are probably in a pool, and where.
type Plan struct {
	from   *Reader
	pool   *Pool
	places []int32 // of each chunk in the pool; -1 if it is to be written
	// cold says of each chunk that it is probably in the pool, whether it is used from there or
	// not. It may well be the same in the next dump, too.
	cold []bool
	// certain says of each chunk that it lies in the pool itself, where it is used: nothing has to be compared.
	certain []bool
	// twins are, of each chunk that is to be written, the first such chunk that is probably the
	// same. Often that is the chunk itself.
	twins []int32
}

// none is the place of a chunk that is to be written.
const none = -1

// NewPlan looks up the chunks of a process in a pool, by their size and checksum. It reads
// none of them.
//
// A shard is used only if at least half of it is needed. So what is kept alive of earlier
// dumps takes at most twice its room. What is written anew although an earlier dump has it gets
// shards of its own, apart from what has changed: the next dump can probably use those.
func NewPlan(from *Reader, pool *Pool) *Plan {
	p := &Plan{from: from, pool: pool, places: make([]int32, from.Chunks()), cold: make([]bool, from.Chunks())}
	rank := p.potential()
	excluded := make([]bool, len(pool.shards))
	for {
		needed := p.assign(rank, excluded)
		var used []int
		changed := false
		for shard, bytes := range needed {
			if bytes == 0 {
				continue
			}
			if 2*bytes < pool.shards[shard].bytes-headerSize || pool.shards[shard].damaged() != nil {
				excluded[shard], changed = true, true
				continue
			}
			used = append(used, shard)
		}
		if len(used) > maxLinked {
			slices.SortFunc(used, func(a, b int) int { return cmp.Compare(needed[b], needed[a]) })
			for _, shard := range used[maxLinked:] {
				excluded[shard], changed = true, true
			}
		}
		if !changed {
			p.identify()
			p.pair()
			return p
		}
	}
}

// potential returns how many bytes of each shard may be needed.
func (p *Plan) potential() []int64 {
	bytes := make([]int64, len(p.pool.shards))
	counted := make([]bool, len(p.pool.places))
	for i := range p.places {
		first, end := p.candidates(i)
		p.cold[i] = first < end
		for at := first; at < end; at++ {
			if !counted[at] {
				counted[at] = true
				bytes[p.pool.places[at].shard] += int64(p.pool.places[at].stored)
			}
		}
	}
	return bytes
}

// assign gives each chunk its place, in the shard that ranks highest. It returns how many
// bytes of each shard are needed.
func (p *Plan) assign(rank []int64, excluded []bool) []int64 {
	needed := make([]int64, len(p.pool.shards))
	counted := make([]bool, len(p.pool.places))
	for i := range p.places {
		p.places[i] = none
		first, end := p.candidates(i)
		for at := first; at < end; at++ {
			shard := p.pool.places[at].shard
			if excluded[shard] || p.places[i] != none && rank[shard] <= rank[p.pool.places[p.places[i]].shard] {
				continue
			}
			p.places[i] = int32(at)
		}
		if at := p.places[i]; at != none && !counted[at] {
			counted[at] = true
			needed[p.pool.places[at].shard] += int64(p.pool.places[at].stored)
		}
	}
	return needed
}

func (p *Plan) candidates(i int) (first, end int) {
	r := p.from.index.at(i)
	if r.codec == Zero {
		return 0, 0
	}
	return p.pool.find(r)
}

// Bytes returns how much memory the chunks that are not zero have, and how much of that is
// probably in the pool, or there several times.
func (p *Plan) Bytes() (all, shared int64) {
	for i := range p.places {
		r := p.from.index.at(i)
		if r.codec == Zero {
			continue
		}
		all += int64(r.size)
		if p.cold[i] || int(p.twins[i]) != i {
			shared += int64(r.size)
		}
	}
	return all, shared
}

// identify finds the chunks that lie in the pool themselves: those of a [Base].
func (p *Plan) identify() {
	p.certain = make([]bool, len(p.places))
	numbers := make(map[uint32]uint32) // in the pool, of a shard of the process
	for i, f := range p.from.files[1:] {
		if info, err := f.Stat(); err == nil {
			if number, known := p.pool.known[Identify(info)]; known {
				numbers[uint32(i)] = number
			}
		}
	}
	for i, at := range p.places {
		if at == none {
			continue
		}
		r, place := p.from.index.at(i), p.pool.places[at]
		number, known := numbers[r.shard]
		p.certain[i] = known && number == place.shard && r.offset == place.offset
	}
}

// pair looks for twins.
func (p *Plan) pair() {
	p.twins = make([]int32, len(p.places))
	var single []int32
	for i, at := range p.places {
		p.twins[i] = int32(i)
		if at == none && p.from.index.at(i).codec != Zero {
			single = append(single, int32(i))
		}
	}
	slices.SortFunc(single, func(a, b int32) int {
		x, y := p.from.index.at(int(a)), p.from.index.at(int(b))
		return cmp.Or(cmp.Compare(x.checksum, y.checksum), cmp.Compare(x.size, y.size), cmp.Compare(a, b))
	})
	for i := 1; i < len(single); i++ {
		x, y := p.from.index.at(int(single[i-1])), p.from.index.at(int(single[i]))
		if x.checksum == y.checksum && x.size == y.size {
			p.twins[single[i]] = p.twins[single[i-1]]
		}
	}
}

// shards returns the numbers of the shards that are used, in order.
func (p *Plan) shards() []uint32 {
	used := make([]bool, len(p.pool.shards))
	for _, at := range p.places {
		if at != none {
			used[p.pool.places[at].shard] = true
		}
	}
	var numbers []uint32
	for number, is := range used {
		if is {
			numbers = append(numbers, uint32(number))
		}
	}
	return numbers
}

// exclude lets the chunks in a shard be written.
func (p *Plan) exclude(shard uint32) {
	for i, at := range p.places {
		if at != none && p.pool.places[at].shard == shard {
			p.places[i] = none
		}
	}
	p.pair()
}
