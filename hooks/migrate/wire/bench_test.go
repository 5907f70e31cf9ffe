package wire

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"cucriu/criuutil/pages"
)

// BenchmarkTransfer sends a file for each connection from memory to memory, over TLS on loopback.
// It stands for the shards of a job's GPU memory.
func BenchmarkTransfer(b *testing.B) {
	const size = 256 << 20
	memory := "/dev/shm"
	random := rand.New(rand.NewPCG(1, 2))
	for _, codec := range []pages.Codec{pages.Raw, pages.S2} {
		for streams := 1; streams <= min(maxStreams, max(2, runtime.NumCPU())); streams *= 2 {
			b.Run(fmt.Sprintf("%v/%d", codec, streams), func(b *testing.B) {
				dir, err := os.MkdirTemp(memory, "wire")
				must(b, err)
				defer os.RemoveAll(dir)
				var sources []*os.File
				block := make([]byte, 8<<20)
				for i := 0; i < len(block); i += 8 { // nothing to compress
					binary.LittleEndian.PutUint64(block[i:], random.Uint64())
				}
				for i := range streams {
					f, err := os.Create(filepath.Join(dir, fmt.Sprint("source-", i)))
					must(b, err)
					defer f.Close()
					for at := int64(0); at < size; at += int64(len(block)) {
						_, err := f.WriteAt(block, at)
						must(b, err)
					}
					sources = append(sources, f)
				}
				b.SetBytes(int64(streams) * size)
				for b.Loop() {
					transfer(b, dir, sources, SendOptions{Streams: streams, Codec: codec})
				}
			})
		}
	}
}

func transfer(b *testing.B, dir string, sources []*os.File, o SendOptions) {
	l, d := pinnedPair(b)
	defer l.Close()
	to, err := os.MkdirTemp(dir, "to")
	must(b, err)
	defer os.RemoveAll(to)
	root, err := os.OpenRoot(to)
	must(b, err)
	defer root.Close()
	r := receive(b, l, ReceiveOptions{Dir: root, MaxBytes: 1 << 50, MaxFiles: len(sources)})
	o.Dial = d.Dial
	ctx := context.Background()
	s, err := NewSender(ctx, o)
	must(b, err)
	errs := make(chan error)
	for i, f := range sources {
		go func() {
			info, err := f.Stat()
			if err == nil {
				err = s.Range(ctx, fmt.Sprint("file-", i), f, 0, info.Size())
			}
			if err == nil {
				err = s.Close(ctx, fmt.Sprint("file-", i), info.Size())
			}
			errs <- err
		}()
	}
	for range sources {
		must(b, <-errs)
	}
	_, err = s.Finish(ctx)
	must(b, err)
	must(b, r.Finish())
}
