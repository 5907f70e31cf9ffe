package wire

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// sampleSize is the part of a chunk that is compressed to see how small the chunk would be.
	sampleSize = 64 << 10
	// skipMost bounds how many chunks are sent as they are, after one that was not worth it, before
	// the next sample.
	skipMost = 15
	// remembered is how many samples tell how fast this host compresses.
	remembered = 9
	// linkBytes and linkTime are how much is sent as it is to measure a link that is not known.
	linkBytes = 16 << 20
	linkTime  = 50 * time.Millisecond
)

// link knows how many bytes a second all connections together take.
type link struct {
	rate atomic.Uint64 // 0 as long as it is not known

	mutex sync.Mutex
	begun time.Time
	bytes int64
}

// there notes bytes that were sent, and have arrived.
func (l *link) there(bytes int64) {
	if l.rate.Load() > 0 {
		return
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	now := time.Now()
	if l.begun.IsZero() { // what came before has waited for the first connection
		l.begun = now
		return
	}
	l.bytes += bytes
	if took := now.Sub(l.begun); l.bytes >= linkBytes && took >= linkTime {
		l.rate.Store(uint64(float64(l.bytes) / took.Seconds()))
	}
}

// adaptiveCodec decides for one connection which chunks are compressed: those that are sooner at the other
// side then.
type adaptiveCodec struct {
	link    *link
	workers int       // connections that can compress at once
	costs   []float64 // seconds per byte of the last samples
	skip    int       // chunks to send before the next sample
	skipped int       // how many were to be skipped the last time
}

// newAdaptiveCodec makes one for each of so many connections.
func newAdaptiveCodec(l *link, streams int) *adaptiveCodec {
	return &adaptiveCodec{link: l, workers: min(streams, runtime.GOMAXPROCS(0))}
}

// worth reports whether a chunk is to be compressed. compress compresses a part of it and returns
// the size.
func (t *adaptiveCodec) worth(content []byte, compress func([]byte) int) bool {
	rate := float64(t.link.rate.Load())
	if rate == 0 {
		return false
	}
	if t.skip > 0 {
		t.skip--
		return false
	}
	start := max(0, len(content)-sampleSize) / 2
	sample := content[start:min(start+sampleSize, len(content))]
	begin := time.Now()
	ratio := float64(compress(sample)) / float64(len(sample))
	t.note(time.Since(begin).Seconds() / float64(len(sample)))
	if quicker(ratio, t.cost()/float64(t.workers), rate) {
		t.skipped = 0
		return true
	}
	t.skipped = min(2*t.skipped+1, skipMost)
	t.skip = t.skipped
	return false
}

// worthwhile is the part of the time for plain bytes that compressed ones may take at most. The rest
// is for decompressing, and for links that are as fast as the processors rather than the network.
const worthwhile = 0.75

// quicker reports whether bytes that shrink to a ratio are sooner at the other side of a link.
// It counts as if nothing were sent while something is compressed.
func quicker(ratio, secondsPerByte, rate float64) bool {
	return secondsPerByte+ratio/rate < worthwhile/rate
}

func (t *adaptiveCodec) note(cost float64) {
	t.costs = append(t.costs, cost)
	if len(t.costs) > remembered {
		t.costs = t.costs[1:]
	}
}

// cost is what compressing takes, in seconds per byte. It is the median: a single sample may have
// waited for a processor.
func (t *adaptiveCodec) cost() float64 {
	sorted := slices.Sorted(slices.Values(t.costs))
	return sorted[(len(sorted)-1)/2]
}
