package jobs

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"cucriu/internal/jobs/ready"
)

// TestADumpWaitsForALookOnlyWhileItMay, and only for one that connects. Looks are made again afterwards.
func TestADumpWaitsForALookOnlyWhileItMay(t *testing.T) {
	p := newProbes()
	p.RLock() // as a look does that hangs
	ctx, end := context.WithTimeout(t.Context(), 3*cutLook)
	defer end()
	if _, err := p.cut(ctx); err == nil {
		t.Error("a look is under way, and was not waited for")
	}
	p.RUnlock()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	looks := func(condition string) error {
		when, err := ready.Parse(condition)
		if err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		return p.look(ctx, &ready.Probe{Condition: when})
	}
	over, err := p.cut(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := looks("file:/nowhere"); err == nil {
		t.Error("there is a file")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = looks("tcp:" + strconv.Itoa(listener.Addr().(*net.TCPAddr).Port))
	}()
	select {
	case <-done:
		t.Error("a look connects while the job is dumped")
	case <-time.After(5 * cutLook):
	}
	over()
	<-done
	if p.until.Load().Err() != nil {
		t.Error("no look is made any more")
	}
}
