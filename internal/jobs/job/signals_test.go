package job

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// TestASignalHasTheTimeAtWhichItCame, however late its receiver is.
func TestASignalHasTheTimeAtWhichItCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Signals{got: make(chan os.Signal, 16)}
		defer close(s.got)
		taken := s.Take()
		begin := time.Now()
		s.got <- unix.SIGTERM
		time.Sleep(10 * time.Millisecond)
		s.got <- unix.SIGTERM
		time.Sleep(time.Hour)
		for _, want := range []time.Duration{0, 10 * time.Millisecond} {
			if got := <-taken; got.Signal != unix.SIGTERM || got.At.Sub(begin) != want {
				t.Errorf("%v after %v, want %v", got.Signal, got.At.Sub(begin), want)
			}
		}
	})
}
