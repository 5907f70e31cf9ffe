package inject

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// regionSize is the size of the memory that the target maps for the tests to advise on. The
// target touches none of it.
const regionSize = 512<<20 + 8<<20

// board is memory that the target and the test share.
type board struct {
	Ready      atomic.Uint64
	Region     atomic.Uint64
	Terminated atomic.Uint64 // SIGTERMs handled
	Poked      atomic.Uint64 // SIGUSR1s handled
	Threads    [len(jobs)]struct {
		TID, Rounds, Failed atomic.Uint64
	}
}

// job is what a thread of the target does again and again: a blocking system call, or
// computing. A round returns 0, or a value that shows what went wrong.
type job struct {
	name  string
	round func(w *worker) uint64
}

// The kernel restarts these calls in all the ways that it has: with the rest of their time,
// unchanged, or with arguments that they have updated themselves.
var jobs = [...]job{
	{"nanosleep", func(w *worker) uint64 {
		return w.takes(80*time.Millisecond, func(limit *unix.Timespec) (uint64, uint64) {
			_, _, errno := unix.RawSyscall6(unix.SYS_CLOCK_NANOSLEEP, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(limit)), 0, 0, 0)
			return uint64(errno), 0
		})
	}},
	{"futex", func(w *worker) uint64 {
		return w.takes(40*time.Millisecond, func(limit *unix.Timespec) (uint64, uint64) {
			_, _, errno := unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&w.futex)), 0, 0, uintptr(unsafe.Pointer(limit)), 0, 0)
			return uint64(errno), uint64(unix.ETIMEDOUT)
		})
	}},
	{"poll", (*worker).poll},
	{"ppoll", (*worker).ppoll},
	{"read", func(w *worker) uint64 { return w.readNext(4) }},
	{"epoll", func(w *worker) uint64 {
		var event unix.EpollEvent
		for {
			n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(w.epoll), uintptr(unsafe.Pointer(&event)), 1, ^uintptr(0), 0, 0)
			if n == 1 && errno == 0 {
				return w.readNext(5)
			}
			if errno != unix.EINTR { // it fails with EINTR whenever the thread is stopped
				return uint64(errno) + 1000
			}
		}
	}},
	{"compute", func(w *worker) uint64 {
		sum := checksum()
		if w.expected == 0 {
			w.expected = sum
		}
		if sum != w.expected {
			return 2000
		}
		return 0
	}},
}

type worker struct {
	futex    uint32
	epoll    int
	next     byte
	expected uint64
}

// takes reports a call that ended too early or with an unexpected result.
func (w *worker) takes(limit time.Duration, call func(*unix.Timespec) (got, want uint64)) uint64 {
	timeout := unix.NsecToTimespec(int64(limit))
	begin := monotonic()
	if got, want := call(&timeout); got != want {
		return got + 3000
	}
	if monotonic()-begin < int64(limit) {
		return 4000
	}
	return 0
}

// ppoll waits in the call with another signal mask than the thread has.
func (w *worker) ppoll() uint64 {
	return w.takes(40*time.Millisecond, func(limit *unix.Timespec) (uint64, uint64) {
		fd, mask, left := unix.PollFd{Fd: 6, Events: unix.POLLIN}, allSignals, *limit
		n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fd)), 1, uintptr(unsafe.Pointer(&left)), uintptr(unsafe.Pointer(&mask)), 8, 0)
		return uint64(errno) + uint64(n), 0
	})
}

// readNext reads one byte. Each byte is one more than the last.
func (w *worker) readNext(fd uintptr) uint64 {
	var got byte
	n, _, errno := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&got)), 1)
	if errno != 0 || n != 1 {
		return uint64(errno) + 5000
	}
	if got != w.next {
		return 6000
	}
	w.next++
	return 0
}

func monotonic() int64 {
	var now unix.Timespec
	unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&now)), 0)
	return now.Nano()
}

//go:noinline
func checksum() uint64 {
	sum, x := uint64(1), 1.0
	for i := range uint64(4e6) {
		sum = sum*6364136223846793005 + i
		x = x*0.999 + float64(sum>>40)
	}
	return sum ^ uint64(x)
}

// The masks of the threads. SIGUSR1 is for the thread that reads.
const usr1 = signalMask(1) << (unix.SIGUSR1 - 1)

func maskOf(thread int) signalMask {
	if jobs[thread].name == "read" {
		return allSignals &^ usr1
	}
	return allSignals &^ (signalMask(1) << (40 + thread)) // no two the same
}

func sigprocmask(set *signalMask) (old signalMask) {
	unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(&old)), 8, 0, 0)
	return old
}

// runBorrowable is the program of the target: a thread for each job.
func runBorrowable() {
	b := mapBoard(3)
	region, err := unix.MmapPtr(-1, 0, nil, regionSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		panic(err)
	}
	b.Region.Store(uint64(uintptr(region)))
	signals := make(chan os.Signal, 100)
	signal.Notify(signals, unix.SIGTERM, unix.SIGUSR1)
	for i := range jobs {
		go func() {
			runtime.LockOSThread()
			w := &worker{}
			w.epoll, _ = unix.EpollCreate1(0)
			_ = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, 5, &unix.EpollEvent{Events: unix.EPOLLIN})
			mask, thread := maskOf(i), &b.Threads[i]
			sigprocmask(&mask)
			mask = sigprocmask(nil)
			thread.TID.Store(uint64(unix.Gettid()))
			b.Ready.Add(1)
			// Only raw system calls from here on, so that the Go scheduler takes no part.
			for thread.Failed.Load() == 0 {
				failed := jobs[i].round(w)
				if sigprocmask(nil) != mask {
					failed = 7000
				}
				thread.Failed.Store(failed)
				thread.Rounds.Add(1)
			}
		}()
	}
	for s := range signals {
		if s == unix.SIGTERM {
			b.Terminated.Add(1)
		} else {
			b.Poked.Add(1)
		}
	}
}

func mapBoard(fd int) *board {
	memory, err := unix.MmapPtr(fd, 0, nil, unsafe.Sizeof(board{}), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	return (*board)(memory)
}

// borrowable is the target as the test sees it.
type borrowable struct {
	*proc.Process
	*board
	saved string
	feeds [2]*os.File // the pipes of the thread that reads and of the one that waits with epoll
	fed   byte
}

func startBorrowable(t *testing.T) *borrowable {
	t.Helper()
	return startTarget(t, "borrowable", len(jobs))
}

// startTarget starts a target and waits until this many of its threads are ready.
func startTarget(t *testing.T, target string, threads int) *borrowable {
	t.Helper()
	p := &borrowable{saved: t.TempDir() + "/borrowed"}
	shared, err := os.CreateTemp(t.TempDir(), "board")
	must(t, err)
	defer shared.Close()
	must(t, shared.Truncate(1<<12))
	p.board = mapBoard(int(shared.Fd()))
	t.Cleanup(func() { _ = unix.MunmapPtr(unsafe.Pointer(p.board), unsafe.Sizeof(board{})) })
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "CRIUUTIL_TARGET="+target, "GOMAXPROCS=16", "GOGC=off", "GODEBUG=asyncpreemptoff=1",
		"GLIBC_TUNABLES=glibc.pthread.rseq=0") // built with cgo, it must leave rseq to the test
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{shared}
	for range 3 { // the third is never written to
		r, w, err := os.Pipe()
		must(t, err)
		defer r.Close()
		t.Cleanup(func() { w.Close() })
		cmd.ExtraFiles = append(cmd.ExtraFiles, r)
		if i := len(cmd.ExtraFiles) - 2; i < len(p.feeds) {
			p.feeds[i] = w
		}
	}
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	p.Process = open(t, cmd.Process.Pid)
	eventually(t, "threads of the target", func() bool { return p.Ready.Load() == uint64(threads) })
	return p
}

// tids returns the tids of the threads with jobs.
func (p *borrowable) tids() []int {
	var tids []int
	for i := range p.Threads {
		tids = append(tids, int(p.Threads[i].TID.Load()))
	}
	return tids
}

func (p *borrowable) stop(t *testing.T) {
	t.Helper()
	must(t, proc.Stop(t.Context(), p.Process))
}

// goesOn continues the process and waits until every thread has finished its current round
// and another one.
func (p *borrowable) goesOn(t *testing.T) {
	t.Helper()
	must(t, p.Signal(unix.SIGCONT))
	var before [len(jobs)]uint64
	for i := range before {
		before[i] = p.Threads[i].Rounds.Load()
	}
	for range 2 {
		for _, feed := range p.feeds {
			if _, err := feed.Write([]byte{p.fed}); err != nil {
				t.Fatal(err)
			}
		}
		p.fed++
	}
	for i := range before {
		eventually(t, jobs[i].name+" goes on", func() bool {
			if failed := p.Threads[i].Failed.Load(); failed != 0 {
				t.Fatalf("%s went wrong: %d", jobs[i].name, failed)
			}
			if !p.Alive() {
				t.Fatal("the process has ended")
			}
			return p.Threads[i].Rounds.Load() >= before[i]+2
		})
	}
}

// wantReturned checks what must be true after threads were returned.
func (p *borrowable) wantReturned(t *testing.T) {
	t.Helper()
	if _, err := os.Lstat(p.saved); !os.IsNotExist(err) {
		t.Fatalf("the file is still there: %v", err)
	}
	must(t, proc.WaitStopped(t.Context(), p.Process))
	for _, tid := range p.tids() {
		if status, err := proc.ReadStatus(tid); err != nil || status.TracerPID != 0 {
			t.Fatalf("thread %d is traced by %d, %v", tid, status.TracerPID, err)
		}
	}
}

// part is a part of the region. Its offsets are bytes from the start, which is aligned to a
// huge page.
func (p *borrowable) part(offset, size uint64) proc.Range {
	start := (p.Region.Load() + hugePage - 1) / hugePage * hugePage
	return proc.Range{Start: start + offset, End: start + offset + size}
}

// borrower is a process that borrows threads and is killed, either by itself at a given
// point or by the test.
func (p *borrowable) borrower(t *testing.T, mode, point string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	part := p.part(0, 64<<20)
	cmd.Env = append(os.Environ(), "CRIUUTIL_TARGET=borrower", "CRIUUTIL_BORROWER="+strings.Join([]string{
		mode, point, strconv.Itoa(p.PID), strings.Trim(fmt.Sprint(p.tids()), "[]"), p.saved, fmt.Sprint(part.Start), fmt.Sprint(part.End),
	}, ","))
	cmd.Stderr = os.Stderr
	return cmd
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s within a minute", what)
		}
	}
}
