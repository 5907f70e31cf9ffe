package inject

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cucriu/internal/proc"
)

// The test binary is its own target: two threads that print their tid and
// then write a byte each few milliseconds.
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
	case "1":
		for fd := range 2 {
			go func() {
				runtime.LockOSThread()
				fmt.Printf("%d %d\n", fd, unix.Gettid())
				// Raw system calls: Go's scheduler would need the other threads.
				dot, pause := byte('.'), unix.Timespec{Nsec: 2e6}
				for {
					if _, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(3+fd), uintptr(unsafe.Pointer(&dot)), 1); errno != 0 {
						os.Exit(0)
					}
					unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&pause)), 0, 0)
				}
			}()
		}
		select {}
	}
	os.Exit(m.Run())
}

// ticking is a process with two threads whose progress the test can see.
type ticking struct {
	*proc.Process
	tids  [2]int
	pipes [2]*os.File
}

func startTicking(t *testing.T) *ticking {
	t.Helper()
	target := &ticking{}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "CRIUUTIL_TARGET=1", "GOMAXPROCS=4")
	for i := range target.pipes {
		r, w, err := os.Pipe()
		must(t, err)
		defer w.Close()
		target.pipes[i] = r
		cmd.ExtraFiles = append(cmd.ExtraFiles, w)
	}
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for range 2 {
		lines.Scan()
		index, tid, _ := strings.Cut(lines.Text(), " ")
		i, err := strconv.Atoi(index)
		must(t, err)
		target.tids[i], _ = strconv.Atoi(tid)
	}
	target.Process = open(t, cmd.Process.Pid)
	return target
}

// ticks reports whether a thread runs: whether it writes a byte after the call of ticks.
func (p *ticking) ticks(t *testing.T, thread int, within time.Duration) bool {
	t.Helper()
	pipe := p.pipes[thread]
	buffer := make([]byte, 1<<16)
	conn, err := pipe.SyscallConn()
	if err == nil {
		_ = pipe.SetReadDeadline(time.Time{})
		err = conn.Read(func(fd uintptr) bool {
			for n := 1; n > 0; {
				n, _ = unix.Read(int(fd), buffer) // until the pipe is empty
			}
			return true
		})
	}
	must(t, err)
	_ = pipe.SetReadDeadline(time.Now().Add(within))
	_, err = pipe.Read(buffer)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return err == nil
}

func (p *ticking) want(t *testing.T, when string, threads ...bool) {
	t.Helper()
	for thread, want := range threads {
		within := 200 * time.Millisecond
		if want {
			within = 20 * time.Second // on a busy machine
		}
		if got := p.ticks(t, thread, within); got != want {
			t.Fatalf("%s: thread %d runs: %v, want %v", when, thread, got, want)
		}
	}
}

func TestOneThreadOfAStoppedProcessRuns(t *testing.T) {
	p := startTicking(t)
	p.want(t, "at first", true, true)
	must(t, proc.Stop(t.Context(), p.Process))
	p.want(t, "stopped", false, false)
	for range 2 { // twice, with the same result
		tracer := NewTracer()
		must(t, tracer.Run(p.tids[0]))
		p.want(t, "first thread traced", true, false)
		must(t, tracer.Release(t.Context()))
		must(t, proc.WaitStopped(t.Context(), p.Process))
		p.want(t, "released", false, false)
		if err := tracer.Release(t.Context()); err != nil {
			t.Fatalf("a second release: %v", err)
		}
		if err := tracer.Run(p.tids[0]); err == nil {
			t.Fatal("a released tracer traces")
		}
	}
	must(t, p.Signal(unix.SIGCONT))
	p.want(t, "continued", true, true)
}

func TestATracedThreadThatDiesIsNoError(t *testing.T) {
	p := startTicking(t)
	must(t, proc.Stop(t.Context(), p.Process))
	tracer := NewTracer()
	must(t, tracer.Run(p.tids[0]))
	must(t, p.Signal(unix.SIGKILL))
	must(t, p.WaitExit(t.Context()))
	must(t, tracer.Release(t.Context()))
}

func TestASecondTracerIsRefusedWithTheReason(t *testing.T) {
	p := startTicking(t)
	must(t, proc.Stop(t.Context(), p.Process))
	first, second := NewTracer(), NewTracer()
	must(t, first.Run(p.tids[0]))
	if err := second.Run(p.tids[0]); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "debugger") {
		t.Fatalf("second tracer: %v", err)
	}
	for _, tracer := range []*Tracer{first, second} {
		must(t, tracer.Release(t.Context()))
	}
}

func TestStopEndsWithItsContext(t *testing.T) {
	p := startTicking(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// A traced thread is not in the group-stop and never gets there.
	must(t, proc.Stop(t.Context(), p.Process))
	tracer := NewTracer()
	defer tracer.Release(context.Background())
	must(t, tracer.Run(p.tids[0]))
	p.want(t, "traced", true, false)
	if err := proc.WaitStopped(ctx, p.Process); !errors.Is(err, context.Canceled) {
		t.Fatalf("wait: %v", err)
	}
}
