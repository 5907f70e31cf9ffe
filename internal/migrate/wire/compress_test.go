package wire

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
)

func TestCompressionPaysIfItSavesMoreThanItTakes(t *testing.T) {
	const mb = 1e6
	for _, c := range []struct {
		ratio, speed, rate float64
		pays               bool
	}{
		{ratio: 0.5, speed: 800 * mb, rate: 100 * mb, pays: true},
		{ratio: 0.5, speed: 800 * mb, rate: 199 * mb, pays: true},
		{ratio: 0.5, speed: 800 * mb, rate: 201 * mb},
		{ratio: 0.95, speed: 800 * mb, rate: 100 * mb},
		{ratio: 0.7, speed: 800 * mb, rate: 10 * mb, pays: true},
		{ratio: 0.8, speed: 800 * mb, rate: 10 * mb},
		{ratio: 1.01, speed: 800 * mb, rate: 1 * mb},
		{ratio: 0.001, speed: 800 * mb, rate: 9800 * mb},
	} {
		if got := quicker(c.ratio, 1/c.speed, c.rate); got != c.pays {
			t.Errorf("to %v of the size, at %v MB/s, for a link of %v MB/s: pays is %v", c.ratio, c.speed/mb, c.rate/mb, got)
		}
	}
}

func TestWhatIsNotWorthItIsTriedLessOften(t *testing.T) {
	var l link
	l.rate.Store(1)
	th := newAdaptiveCodec(&l, 1)
	chunk := make([]byte, PieceSize)
	tried, ratio := 0, 1
	compress := func(sample []byte) int {
		tried++
		return len(sample) / ratio
	}
	for range 160 {
		if th.worth(chunk, compress) {
			t.Fatal("what does not get smaller is compressed")
		}
	}
	if tried < 10 || tried > 20 {
		t.Errorf("%d of 160 chunks were tried", tried)
	}
	ratio = 1000
	for range skipMost {
		th.worth(chunk, compress)
	}
	tried = 0
	for i := range 100 {
		if !th.worth(chunk, compress) {
			t.Fatalf("chunk %d is not compressed, which would be worth it", i)
		}
	}
	if tried != 100 {
		t.Errorf("%d of 100 chunks were tried", tried)
	}
	l.rate.Store(math.MaxUint64) // too quick for any compression
	tried = 0
	for range 160 {
		if th.worth(chunk, compress) {
			t.Fatal("it is compressed for a link that needs none")
		}
	}
	if tried > 20 {
		t.Errorf("%d of 160 chunks were tried", tried)
	}
}

func TestASlowLinkGetsLess(t *testing.T) {
	const limit = 30 << 20 // bytes per second
	random := rand.New(rand.NewPCG(1, 2))
	files := make(map[string][]byte)
	for i := range 2 {
		text, noise := bytes.Repeat([]byte("much the same; "), 20<<20/15), make([]byte, 4<<20)
		for j := range noise {
			noise[j] = byte(random.Uint32())
		}
		files[fmt.Sprint("text-", i)], files[fmt.Sprint("noise-", i)] = text, noise
	}
	send := func(t *testing.T, o SendOptions) (Totals, time.Duration) {
		t.Helper()
		r, d := pinnedPair(t, ReceiveOptions{})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		o.Dial, o.BytesPerSecond = d.Dial, limit
		begin := time.Now()
		s, err := NewSender(ctx, o)
		must(t, err)
		totals, err := sendAll(ctx, s, files)
		took := time.Since(begin)
		must(t, err)
		must(t, r.Finish())
		checkFiles(t, r.Dir.Name(), files)
		return totals, took
	}
	plain, plainTook := send(t, SendOptions{})
	for name, o := range map[string]SendOptions{
		"known":    {Compress: true, Auto: true, Link: limit},
		"measured": {Compress: true, Auto: true},
	} {
		t.Run(name, func(t *testing.T) {
			totals, took := send(t, o)
			t.Logf("%d bytes in %v instead of %d in %v", totals.Sent, took, plain.Sent, plainTook)
			if totals.Sent > plain.Sent*3/4 {
				t.Errorf("%d bytes, and plain %d", totals.Sent, plain.Sent)
			}
		})
	}
	t.Run("fast", func(t *testing.T) {
		totals, _ := send(t, SendOptions{Compress: true, Auto: true, Link: 1e12})
		if totals.Sent != plain.Sent {
			t.Errorf("%d bytes were sent, and plain %d", totals.Sent, plain.Sent)
		}
	})
}

// BenchmarkCompress is how fast one processor compresses what a link may be spared.
func BenchmarkCompress(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 2))
	text := bytes.Repeat([]byte("much the same; "), PieceSize/15+1)[:PieceSize]
	weights, noise := make([]byte, PieceSize), make([]byte, PieceSize)
	for i := 0; i < PieceSize; i += 2 { // as of bfloat16
		bits := math.Float32bits(float32(random.NormFloat64() * 0.02))
		weights[i], weights[i+1] = byte(bits>>16), byte(bits>>24)
	}
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	for name, data := range map[string][]byte{"text": text, "weights": weights, "noise": noise} {
		b.Run(name, func(b *testing.B) {
			p, err := newPacker(SendOptions{Compress: true}, nil)
			must(b, err)
			b.SetBytes(PieceSize)
			var size int
			for b.Loop() {
				size = p.compress(data)
			}
			b.ReportMetric(float64(size)/PieceSize, "ratio")
			runtime.KeepAlive(size)
		})
	}
}
