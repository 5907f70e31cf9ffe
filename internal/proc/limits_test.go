package proc

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTooFewOpenFiles are refused, or the limit is raised.
func TestTooFewOpenFiles(t *testing.T) {
	var first unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &first); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &first) }()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 32, Max: first.Max}); err != nil {
		t.Fatal(err)
	}
	if err := FitLimits(false); err == nil || !strings.Contains(err.Error(), "may have 32 files open (ulimit -n), and needs at least 64") {
		t.Errorf("got %v", err)
	}
	if err := errors.Join(FitLimits(true), FitLimits(false)); err != nil {
		t.Error(err)
	}
}

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
