package wire

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"
)

func TestFilesAreSentWhileTheyGrow(t *testing.T) {
	l, d := pinnedPair(t)
	files := content(2, 5<<20+77, 3<<20, 0, 10)
	r := receive(t, l, ReceiveOptions{MaxBytes: total(files), MaxFiles: len(files)})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	early := make(chan int64, 1<<10)
	s, err := NewSender(ctx, SendOptions{Dial: d.Dial, Progress: func(n int64) { early <- n }})
	must(t, err)
	p := NewParallel(ctx, s)
	growing := make(map[string]*Growing)
	for name, data := range files {
		growing[name] = p.Add(name, bytes.NewReader(data))
		growing[name].Grow(int64(len(data)) / 2)
	}
	for sent := int64(0); sent < 3<<20; { // whole pieces of the halves: 2 and 1 MiB
		select {
		case sent = <-early:
		case <-ctx.Done():
			t.Fatal("nothing is sent before the files are complete")
		}
	}
	for name, data := range files {
		growing[name].Complete(int64(len(data)))
	}
	must(t, p.Wait(ctx))
	_, err = s.Finish(ctx)
	must(t, err)
	must(t, r.Wait(ctx))
	must(t, r.Finish())
	checkFiles(t, r.dir, files)
}

func TestAFileThatNeverGrowsIsGivenUp(t *testing.T) {
	l, d := pinnedPair(t)
	receive(t, l, ReceiveOptions{MaxBytes: 1 << 20, MaxFiles: 1})
	s, err := NewSender(t.Context(), SendOptions{Dial: d.Dial})
	must(t, err)
	p := NewParallel(t.Context(), s)
	p.Add("file", bytes.NewReader(nil))
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(enough)
	if err := p.Wait(ctx); !errors.Is(err, enough) {
		t.Errorf("the sending ended with %v", err)
	}
}

func TestAReceiverThatRefusesEndsTheSending(t *testing.T) {
	l, d := pinnedPair(t)
	receive(t, l, ReceiveOptions{MaxBytes: 1 << 20, MaxFiles: 1})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := NewSender(ctx, SendOptions{Dial: d.Dial})
	must(t, err)
	p := NewParallel(ctx, s)
	data := content(3, 8<<20)["file-0.img"]
	g := p.Add("file", bytes.NewReader(data))
	for grown := int64(0); p.Context().Err() == nil && ctx.Err() == nil; grown = min(grown+1<<20, 7<<20) {
		g.Grow(grown)
		time.Sleep(time.Millisecond)
		if s.ctx.Err() != nil {
			g.Complete(8 << 20)
		}
	}
	var remote *RemoteError
	if err := p.Wait(ctx); !errors.As(err, &remote) {
		t.Errorf("the sending ended with %v", err)
	}
}
