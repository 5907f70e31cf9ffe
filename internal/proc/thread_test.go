package proc

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestOwnThreadIsNotTheMainOne: what a thread changes of itself does not stay with the process.
func TestOwnThreadIsNotTheMainOne(t *testing.T) {
	for range 1000 {
		var tid int
		if got := OnOwnThread(func() { tid = unix.Gettid() }); got != tid || tid == unix.Getpid() {
			t.Fatalf("it was called on thread %d of process %d, and told %d", tid, unix.Getpid(), got)
		}
	}
}
