package inject

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv/quick"
)

// The test binary is its own target.
func TestMain(m *testing.M) {
	switch os.Getenv("CRIUUTIL_TARGET") {
	case "borrowable":
		runBorrowable()
	case "catching":
		signal.Notify(make(chan os.Signal, 1), unix.SIGCONT)
		runBorrowable()
	case "filtered":
		filterPopulating()
		runBorrowable()
	case "filtered wait":
		filterParking()
		runBorrowable()
	case "strict":
		runStrict()
	case "sequence":
		runSequence()
	case "borrower":
		if err := runBorrower(os.Getenv("CRIUUTIL_BORROWER")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case "mapper":
		runMapper()
	case "populater":
		fmt.Fprintln(os.Stderr, runPopulater(os.Getenv("CRIUUTIL_TID")))
		os.Exit(1)
	}
	if err := quick.Choose(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func TestOneThreadOfAStoppedProcessRuns(t *testing.T) {
	p := startMapper(t)
	runs := func() {
		t.Helper()
		_, err := p.request(mapping{1 << 12, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS})
		must(t, err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 { // twice, with the same result
		tracer := NewTracer()
		must(t, tracer.Run(p.tid))
		runs()
		tids, err := proc.Threads(p.PID)
		must(t, err)
		for _, tid := range tids {
			if stat, err := proc.ThreadStat(p.PID, tid); err != nil || tid != p.tid && stat.State != "T" {
				t.Fatalf("thread %d, which is not traced, is in the state %s (%v)", tid, stat.State, err)
			}
		}
		// A traced thread is not in the group-stop and never gets there.
		if err := proc.WaitStopped(over, p.Process); !errors.Is(err, context.Canceled) {
			t.Fatalf("wait: %v", err)
		}
		must(t, tracer.Release(t.Context()))
		must(t, proc.WaitStopped(t.Context(), p.Process))
		must(t, tracer.Release(t.Context()))
		if err := tracer.Run(p.tid); err == nil {
			t.Fatal("a released tracer traces")
		}
	}
	must(t, p.Signal(unix.SIGCONT))
	runs()
}

func TestATracedThreadThatDiesIsNoError(t *testing.T) {
	p := startMapper(t)
	tracer := NewTracer()
	must(t, tracer.Run(p.tid))
	must(t, p.Signal(unix.SIGKILL))
	must(t, p.WaitExit(t.Context()))
	must(t, tracer.Release(t.Context()))
}

func TestASecondTracerIsRefusedWithTheReason(t *testing.T) {
	p := startMapper(t)
	first, second := NewTracer(), NewTracer()
	must(t, first.Run(p.tid))
	if err := second.Run(p.tid); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "debugger") {
		t.Fatalf("second tracer: %v", err)
	}
	for _, tracer := range []*Tracer{first, second} {
		must(t, tracer.Release(t.Context()))
	}
}
