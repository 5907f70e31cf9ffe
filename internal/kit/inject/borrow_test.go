package inject

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"cucriu/internal/kit/proc"
)

func (p *borrowable) borrow(t *testing.T, tids ...int) *Borrowed {
	t.Helper()
	b, err := Borrow(t.Context(), p.PID, tids, p.saved)
	must(t, err)
	t.Cleanup(func() { _ = b.Return(context.Background()) })
	return b
}

func open(t *testing.T, pid int) *proc.Process {
	t.Helper()
	p, err := proc.Open(pid)
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestBorrowedThreadsGoOnAsIfNothingHadHappened(t *testing.T) {
	t.Parallel()
	p := startBorrowable(t)
	for range 5 {
		p.stop(t)
		b := p.borrow(t, p.tids()...)
		must(t, b.Madvise(t.Context(), []proc.Range{p.part(0, 64<<20)}, unix.MADV_POPULATE_WRITE))
		must(t, b.Madvise(t.Context(), []proc.Range{p.part(0, 64<<20)}, unix.MADV_DONTNEED))
		must(t, b.Return(t.Context()))
		must(t, b.Return(t.Context()))
		if err := b.Madvise(t.Context(), []proc.Range{p.part(0, 64<<20)}, unix.MADV_DONTNEED); err == nil {
			t.Fatal("returned threads were made to call")
		}
		p.wantReturned(t)
		p.goesOn(t)
	}
}

func TestMadvisePopulatesAndDropsWhatIsNamed(t *testing.T) {
	p := startBorrowable(t)
	p.stop(t)
	b := p.borrow(t, p.tids()...)
	const margin, size = 2<<20 - 4096, 512 << 20 // not aligned
	inner := p.part(margin, size)
	before, after := p.part(0, margin), proc.Range{Start: inner.End, End: inner.End + 4096}
	rss := func() uint64 {
		status, err := proc.ReadStatus(p.PID)
		must(t, err)
		return status.Anonymous
	}
	empty := rss()
	must(t, b.Madvise(t.Context(), []proc.Range{inner}, unix.MADV_HUGEPAGE))
	must(t, b.Madvise(t.Context(), []proc.Range{inner}, unix.MADV_POPULATE_WRITE))
	if got := rss(); got < empty+size {
		t.Fatalf("%d bytes were populated", got-empty)
	}
	// One page of every slice that there may be, and all pages around the range.
	content := bytes.Repeat([]byte("content "), margin/8)
	must(t, p.WriteMemory(content[:before.Size()], before.Start))
	must(t, p.WriteMemory(content[:after.Size()], after.Start))
	for at := inner.Start; at < inner.End; at += hugePage {
		must(t, p.WriteMemory(content[:4096], at))
	}
	full := rss()
	half := proc.Range{Start: inner.Start, End: inner.Start + size/2}
	must(t, b.Madvise(t.Context(), []proc.Range{half, {Start: half.End, End: half.End}, {Start: half.End, End: inner.End}}, unix.MADV_DONTNEED))
	if got := rss(); got+size-hugePage > full {
		t.Fatalf("%d bytes were dropped of %d", full-got, size)
	}
	check := func(where proc.Range, want []byte) {
		got := make([]byte, where.Size())
		must(t, p.ReadMemory(got, where.Start))
		if !bytes.Equal(got, want[:len(got)]) {
			t.Fatalf("%#x-%#x is not what it was to be", where.Start, where.End)
		}
	}
	check(before, content)
	check(after, content)
	for at := inner.Start; at < inner.End; at += hugePage {
		check(proc.Range{Start: at, End: at + 4096}, make([]byte, 4096))
	}
	must(t, b.Return(t.Context()))
	p.goesOn(t)
}

func TestMadviseReportsWhatTheKernelSays(t *testing.T) {
	p := startBorrowable(t)
	p.stop(t)
	b := p.borrow(t, p.tids()...)
	for _, test := range []struct {
		name   string
		ranges []proc.Range
		advice int
		want   error
	}{
		{"unmapped", []proc.Range{p.part(0, hugePage), {Start: 1 << 40, End: 1<<40 + 64<<20}}, unix.MADV_POPULATE_WRITE, unix.ENOMEM},
		{"no such advice", []proc.Range{p.part(0, 64<<20)}, 12345, unix.EINVAL},
		{"no whole pages", []proc.Range{p.part(0, 100)}, unix.MADV_DONTNEED, unix.EINVAL},
		{"end before start", []proc.Range{{Start: hugePage, End: 0}}, unix.MADV_DONTNEED, unix.EINVAL},
	} {
		if err := b.Madvise(t.Context(), test.ranges, test.advice); !errors.Is(err, test.want) || !strings.Contains(err.Error(), strconv.Itoa(p.PID)) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	must(t, b.Return(t.Context()))
	p.goesOn(t)
}

func TestBorrowIsRefusedAndChangesNothing(t *testing.T) {
	p := startBorrowable(t)
	refused := func(why string, pid int, tids []int, want string) {
		t.Helper()
		if _, err := Borrow(t.Context(), pid, tids, p.saved); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", why, err)
		}
	}
	refused("running", p.PID, p.tids(), ErrNotStopped.Error())
	p.goesOn(t)
	p.stop(t)
	refused("no threads", p.PID, nil, "no threads")
	refused("a thread of another process", p.PID, append(p.tids(), os.Getpid()), proc.ErrGone.Error())
	p.wantReturned(t)
	b := p.borrow(t, p.tids()...)
	refused("a borrower that may be alive", p.PID, p.tids(), p.saved)
	if _, err := Borrow(t.Context(), p.PID, p.tids(), p.saved+"2"); !errors.Is(err, unix.EPERM) {
		t.Errorf("borrowed twice: %v", err)
	}
	if err := ReturnThreads(t.Context(), p.saved); !errors.Is(err, unix.EPERM) {
		t.Errorf("returned in place of a living borrower: %v", err)
	}
	must(t, b.Return(t.Context()))
	p.wantReturned(t)
	p.goesOn(t)
}

func TestAnEndOfTheContextLeavesThreadsReturnable(t *testing.T) {
	p := startBorrowable(t)
	p.stop(t)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if b, err := Borrow(over, p.PID, p.tids(), p.saved); err == nil {
		must(t, b.Return(t.Context())) // the threads had all stopped at once
	} else if !errors.Is(err, context.Canceled) {
		t.Fatalf("borrow: %v", err)
	}
	p.wantReturned(t)
	b := p.borrow(t, p.tids()...)
	p.giveUp(t, b)
	if err := b.Madvise(t.Context(), []proc.Range{p.part(0, 256<<20)}, unix.MADV_DONTNEED); err == nil {
		t.Fatal("threads that were let go of were borrowed on")
	}
	must(t, ReturnThreads(t.Context(), p.saved)) // by the same process
	p.wantReturned(t)
	p.goesOn(t)
}

func TestAnEndOfTheContextLeavesThreadsWithoutAFileBorrowed(t *testing.T) {
	p := startBorrowable(t)
	p.stop(t)
	b, err := Borrow(t.Context(), p.PID, p.tids(), "")
	must(t, err)
	p.giveUp(t, b)
	must(t, b.Madvise(t.Context(), []proc.Range{p.part(0, 256<<20)}, unix.MADV_DONTNEED))
	must(t, b.Return(t.Context()))
	p.wantReturned(t)
	p.goesOn(t)
}

// giveUp starts a call, does not wait for it, and then fails to return the threads.
func (p *borrowable) giveUp(t *testing.T, b *Borrowed) {
	t.Helper()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Madvise(over, []proc.Range{p.part(0, 256<<20)}, unix.MADV_POPULATE_WRITE); !errors.Is(err, context.Canceled) {
		t.Fatalf("madvise: %v", err)
	}
	if err := b.Return(over); !errors.Is(err, context.Canceled) {
		t.Fatalf("return: %v", err)
	}
}

func TestATargetThatIsKilledWhileBorrowedFrom(t *testing.T) {
	p := startBorrowable(t)
	p.stop(t)
	inside := make(chan struct{}, 1)
	b, err := lend(t.Context(), p.PID, p.tids(), p.saved, func(point string) {
		if point == "inside" {
			select {
			case inside <- struct{}{}:
			default:
			}
		}
	})
	must(t, err)
	go func() {
		<-inside
		_ = p.Signal(unix.SIGKILL)
	}()
	for err == nil { // the calls may be over before the kill
		err = b.Madvise(t.Context(), []proc.Range{p.part(0, 512<<20)}, unix.MADV_POPULATE_WRITE)
	}
	if !errors.Is(err, proc.ErrGone) && !errors.Is(err, unix.EINTR) {
		t.Fatalf("madvise: %v", err)
	}
	must(t, p.WaitExit(t.Context())) // we do not keep it from ending
	must(t, b.Return(t.Context()))
	if _, err := os.Lstat(p.saved); !os.IsNotExist(err) {
		t.Fatalf("the file is still there: %v", err)
	}
	if _, err := Borrow(t.Context(), p.PID, p.tids(), p.saved); !errors.Is(err, proc.ErrGone) {
		t.Errorf("borrowed from a zombie: %v", err)
	}
}

// TestATargetThatWasKilledEnds, which takes that its borrowed threads are waited for, although it was
// seen otherwise that they have ended. Who makes the driver work in it may wait for that.
func TestATargetThatWasKilledEnds(t *testing.T) {
	p := startBorrowable(t)
	p.stop(t)
	b := p.borrow(t, p.tids()...)
	must(t, b.loan.do(func() error { // which keeps it from being seen as usual
		must(t, p.Signal(unix.SIGKILL))
		for _, tid := range p.tids() {
			eventually(t, "the thread has ended", func() bool {
				_, err := proc.ThreadStat(p.PID, tid)
				return errors.Is(err, proc.ErrGone)
			})
		}
		b.loan.findEnded()
		return nil
	}))
	eventually(t, "the process has ended", func() bool { return !p.Alive() })
	must(t, b.Return(t.Context()))
}

func TestSignalsThatArriveWhileBorrowedAreTakenOnceAfterwards(t *testing.T) {
	t.Parallel()
	p := startBorrowable(t)
	p.stop(t)
	all, err := proc.Threads(p.PID)
	must(t, err)
	reader := p.tids()[slices.IndexFunc(jobs[:], func(j job) bool { return j.name == "read" })]
	b := p.borrow(t, all...)
	must(t, p.Signal(unix.SIGTERM))
	must(t, unix.Tgkill(p.PID, reader, unix.SIGUSR1))
	must(t, b.Madvise(t.Context(), []proc.Range{p.part(0, 64<<20)}, unix.MADV_POPULATE_WRITE))
	must(t, b.Return(t.Context()))
	p.wantReturned(t)
	if p.Terminated.Load()+p.Poked.Load() != 0 {
		t.Fatal("a signal was taken by a stopped process")
	}
	p.goesOn(t)
	// The second ones come last, so the first have been counted once and no more.
	for n := range uint64(2) {
		eventually(t, "signals", func() bool { return p.Terminated.Load() >= n+1 && p.Poked.Load() >= n+1 })
		if p.Terminated.Load() != n+1 || p.Poked.Load() != n+1 {
			t.Fatalf("after %d signals: %d and %d taken", n+1, p.Terminated.Load(), p.Poked.Load())
		}
		if n == 0 {
			must(t, p.Signal(unix.SIGTERM))
			must(t, unix.Tgkill(p.PID, reader, unix.SIGUSR1))
		}
	}
	p.goesOn(t)
}

func TestStopAndContinueWhileBorrowed(t *testing.T) {
	p := startBorrowable(t)
	advise := func(b *Borrowed) {
		t.Helper()
		must(t, b.Madvise(t.Context(), []proc.Range{p.part(0, 64<<20)}, unix.MADV_POPULATE_WRITE))
	}
	p.stop(t)
	b := p.borrow(t, p.tids()...)
	advise(b)
	must(t, p.Signal(unix.SIGSTOP))
	advise(b)
	must(t, p.Signal(unix.SIGCONT))
	advise(b)
	must(t, p.Signal(unix.SIGSTOP))
	advise(b)
	must(t, b.Return(t.Context()))
	p.wantReturned(t)
	p.goesOn(t)

	p.stop(t)
	b = p.borrow(t, p.tids()...)
	must(t, p.Signal(unix.SIGCONT))
	advise(b)
	must(t, b.Return(t.Context()))
	p.goesOn(t) // nobody has stopped it again
}

func TestBorrowingLeavesNothingOfItselfBehind(t *testing.T) {
	p := startBorrowable(t)
	p.stop(t)
	count := func(what string) int {
		entries, err := os.ReadDir("/proc/self/" + what)
		must(t, err)
		return len(entries)
	}
	cycle := func() {
		b := p.borrow(t, p.tids()...)
		must(t, b.Madvise(t.Context(), []proc.Range{p.part(0, hugePage)}, unix.MADV_POPULATE_WRITE))
		must(t, b.Return(t.Context()))
	}
	cycle()
	const cycles = 50
	descriptors, threads := count("fd"), count("task")
	for range cycles {
		cycle()
	}
	if got := count("task"); got > threads+cycles/2 { // the Go runtime may start some
		t.Errorf("%d OS threads were left", got-threads)
	}
	if got := count("fd"); got > descriptors {
		t.Errorf("%d descriptors were left open", got-descriptors)
	}
	p.goesOn(t)
}

// TestABorrowerKilledAtAnyPoint kills a borrower at every point, and also the process that
// returns the threads after it.
func TestABorrowerKilledAtAnyPoint(t *testing.T) {
	t.Parallel()
	p := startBorrowable(t)
	for _, test := range []struct{ mode, point string }{
		{"borrow", "seized"},
		{"borrow", "saved"},
		{"borrow", "masked"},
		{"borrow", "entry"},
		{"borrow", "inside"},
		{"borrow", "populating"},
		{"borrow", "exit"},
		{"borrow", "put back"},
		{"borrow", "all put back"},
		{"borrow", "removed"},
		{"return", "taken over"},
		{"return", "put back"},
		{"return", "all put back"},
		{"return", "removed"},
		{"park", "seized"},
		{"park", "saved"},
		{"park", "masked"},
		{"park", "parked"},
		{"step", "taken"},
		{"step", "own registers"},
		{"step", "step"},
		{"step", "stepped"},
		{"step", "kept"},
		{"step", "masked again"},
	} {
		t.Logf("%s, killed at %q", test.mode, test.point)
		p.stop(t)
		if test.mode == "step" { // of the threads, one computes, which is at a system call at times
			for {
				parked, err := Park(t.Context(), p.PID, nil, p.saved)
				must(t, err)
				compute := parked.Threads[slices.IndexFunc(parked.Threads, func(s savedThread) bool { return s.TID == p.tids()[len(jobs)-1] })]
				if inCall, err := compute.Registers.inCall(p.Process); err == nil && !inCall {
					break
				}
				must(t, ReturnThreads(t.Context(), p.saved))
				p.goesOn(t)
				p.stop(t)
			}
			must(t, p.Signal(unix.SIGSTOP)) // a surplus one, as [proc.Stop] may have sent
		}
		run := []*exec.Cmd{p.borrower(t, test.mode, test.point)}
		if test.mode == "return" { // follows a borrower that is killed with threads inside a call
			run = slices.Insert(run, 0, p.borrower(t, "borrow", "inside"))
		}
		for _, cmd := range run {
			_ = cmd.Run()
			if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != unix.SIGKILL {
				t.Fatalf("%s, to be killed at %q: %v", test.mode, test.point, cmd.ProcessState)
			}
		}
		must(t, ReturnThreads(t.Context(), p.saved))
		must(t, ReturnThreads(t.Context(), p.saved))
		p.wantReturned(t)
		p.goesOn(t)
	}
}

func TestABorrowerKilledAtAnyTime(t *testing.T) {
	t.Parallel()
	p := startBorrowable(t)
	for left, tries := 0, 0; left < 8; tries++ {
		if tries == 100 {
			t.Fatalf("killed while it borrowed %d times of %d", left, tries)
		}
		p.stop(t)
		cmd := p.borrower(t, "loop", "")
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		_, err = io.ReadFull(out, make([]byte, 1))
		must(t, err)
		time.Sleep(time.Duration(rand.IntN(30_000)) * time.Microsecond)
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		if _, err := os.Lstat(p.saved); err == nil {
			left++
		}
		must(t, ReturnThreads(t.Context(), p.saved))
		p.wantReturned(t)
		p.goesOn(t)
	}
}

func TestThreadsThatAreOthersNowAreLeftAlone(t *testing.T) {
	p := startBorrowable(t)
	p.stop(t)
	saved := savedThreads{PID: p.PID, Instruction: 1}
	for _, tid := range p.tids() {
		saved.Threads = append(saved.Threads, savedThread{TID: tid, StartTime: 1})
	}
	must(t, saved.write(p.saved))
	must(t, ReturnThreads(t.Context(), p.saved))
	p.wantReturned(t)
	p.goesOn(t)
}

func TestSlicesAreTheRanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var ranges []proc.Range
		for i := range rapid.IntRange(0, 3).Draw(t, "ranges") {
			start := uint64(i)<<40 + 4096*rapid.Uint64Range(0, 2000).Draw(t, "start")
			ranges = append(ranges, proc.Range{Start: start, End: start + 4096*rapid.Uint64Range(0, 1<<18).Draw(t, "pages")})
		}
		var joined []proc.Range
		for _, s := range cut(ranges, rapid.IntRange(1, 64).Draw(t, "threads"), 64<<20) {
			if s.Size() == 0 || s.Size() > 64<<20 {
				t.Fatalf("a slice of %d bytes", s.Size())
			}
			if n := len(joined); n > 0 && joined[n-1].End == s.Start {
				if s.Start%hugePage != 0 {
					t.Fatalf("%#x splits a huge page", s.Start)
				}
				joined[n-1].End = s.End
			} else {
				joined = append(joined, s)
			}
		}
		ranges = slices.DeleteFunc(ranges, func(r proc.Range) bool { return r.Size() == 0 })
		if !slices.Equal(joined, ranges) {
			t.Fatalf("%v were cut into %v", ranges, joined)
		}
	})
}

// runBorrower is the program of a process that borrows threads and kills itself at a point.
func runBorrower(arguments string) error {
	field := strings.Split(arguments, ",")
	mode, point, saved := field[0], field[1], field[4]
	pid, _ := strconv.Atoi(field[2])
	var tids []int
	for _, tid := range strings.Fields(field[3]) {
		n, _ := strconv.Atoi(tid)
		tids = append(tids, n)
	}
	var part proc.Range
	part.Start, _ = strconv.ParseUint(field[5], 10, 64)
	part.End, _ = strconv.ParseUint(field[6], 10, 64)
	die := func() { _ = unix.Kill(os.Getpid(), unix.SIGKILL) }
	steps := 0
	at := func(reached string) {
		if reached == "step" { // not at the first, from where nothing could go wrong
			if steps++; steps%500 != 0 {
				return
			}
		}
		if reached == point || point == "populating" && reached == "put back" { // the call was quicker
			die()
		}
		if reached == "saved" && mode == "loop" {
			fmt.Print(".") // tells the test that it may kill us now
		}
		if reached == "inside" && point == "populating" {
			go func() {
				time.Sleep(5 * time.Millisecond) // into the call
				die()
			}()
		}
	}
	ctx := context.Background()
	if mode == "return" {
		return returnSaved(ctx, saved, at)
	}
	if mode == "step" {
		_, err := stepOutIn(ctx, pid, 3000, every, func() bool { return false }, saved, at)
		return err
	}
	if mode == "park" {
		_, err := parkIn(ctx, pid, nil, saved, at)
		return err
	}
	for {
		b, err := lend(ctx, pid, tids, saved, at)
		if err != nil {
			return err
		}
		if err := b.Madvise(ctx, []proc.Range{part}, unix.MADV_POPULATE_WRITE); err != nil {
			return err
		}
		if err := b.Madvise(ctx, []proc.Range{part}, unix.MADV_DONTNEED); err != nil {
			return err
		}
		if err := b.Return(ctx); err != nil || mode != "loop" {
			return err
		}
	}
}

// TestAThreadThatCriuHasRestoredIsAtItsCall: only its program counter shows that it is at a
// system call.
func TestAThreadThatCriuHasRestoredIsAtItsCall(t *testing.T) {
	p, err := proc.Open(os.Getpid())
	must(t, err)
	defer p.Close()
	address, err := findSyscallInstruction(p)
	must(t, err)
	for at, want := range map[uint64]bool{address: true, address + 1: false} {
		regs := registers{}.calling(at, 0, 0, 0, 0) // in no call
		if got, err := regs.inCall(p); err != nil || got != want {
			t.Errorf("at %#x of %#x: %v, %v", at, address, got, err)
		}
	}
}
