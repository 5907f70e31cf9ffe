package proc

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
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

// TestTooLittleAddressSpaceIsRefused: a program that began without it would crash in the middle of its work.
func TestTooLittleAddressSpaceIsRefused(t *testing.T) {
	const child = "CUCRIU_TEST_LITTLE_SPACE"
	if os.Getenv(child) == "" {
		if err := FitLimits(false); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &limit); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseUint(strings.Fields(string(text))[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	limit.Cur = pages*uint64(os.Getpagesize()) + 300<<20
	if err := unix.Setrlimit(unix.RLIMIT_AS, &limit); err != nil {
		t.Fatal(err)
	}
	if err := FitLimits(false); err == nil || !strings.Contains(err.Error(), "(ulimit -v)") {
		t.Errorf("it is not refused: %v", err)
	}
	if err := FitLimits(true); err != nil {
		t.Errorf("the limit may be raised, and was not: %v", err)
	}
}
