package proc

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestALimitIsRaised as far as root may, and is known as it was.
func TestALimitIsRaised(t *testing.T) {
	var first, now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &first); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_FSIZE, &first) }()
	low := unix.Rlimit{Cur: 1 << 30, Max: 1 << 40}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &low); err != nil {
		t.Fatal(err)
	}
	before, err := RaiseLimit(unix.RLIMIT_FSIZE)
	if err != nil || before != low {
		t.Errorf("the limit was %+v, %v; want %+v", before, err, low)
	}
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &now); err != nil || now.Cur != unix.RLIM_INFINITY && now.Cur != low.Max {
		t.Errorf("the limit is %+v, %v", now, err)
	}
}
