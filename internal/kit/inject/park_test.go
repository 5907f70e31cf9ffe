package inject

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

func (p *borrowable) park(t *testing.T, except ...int) Parked {
	t.Helper()
	p.stop(t)
	parked, err := Park(t.Context(), p.PID, except, p.saved)
	must(t, err)
	must(t, proc.WaitStopped(t.Context(), p.Process))
	return parked
}

// rounds returns how many rounds each thread has done.
func (p *borrowable) rounds() (rounds [len(jobs)]uint64) {
	for i := range rounds {
		rounds[i] = p.Threads[i].Rounds.Load()
	}
	return rounds
}

// wantWaiting continues the process and waits until each of its threads is in the wait of a
// parked thread.
func (p *borrowable) wantWaiting(t *testing.T, parked Parked) {
	t.Helper()
	must(t, p.Signal(unix.SIGCONT))
	p.wantInWait(t, parked)
}

// waits is what /proc/PID/task/TID/syscall begins with for a thread that waits parked.
func (p Parked) waits() string {
	return fmt.Sprintf("%d %#x 0x80 ", unix.SYS_FUTEX, p.Instruction&^3)
}

func (p *borrowable) wantInWait(t *testing.T, parked Parked) {
	t.Helper()
	for _, thread := range parked.Threads {
		eventually(t, fmt.Sprintf("thread %d waits", thread.TID), func() bool {
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/syscall", p.PID, thread.TID))
			return err == nil && strings.HasPrefix(string(data), parked.waits())
		})
	}
}

// TestParkedThreadsRunNothingWhateverContinuesThem, also if they were parked while they ran.
func TestParkedThreadsRunNothingWhateverContinuesThem(t *testing.T) {
	t.Parallel()
	p := startBorrowable(t)
	for _, stopped := range []bool{true, false, false} {
		if stopped {
			p.stop(t)
		}
		parked, err := Park(t.Context(), p.PID, nil, p.saved)
		must(t, err)
		if isParked, err := IsParked(p.saved); err != nil || !isParked {
			t.Fatalf("is parked: %v %v", isParked, err)
		}
		if _, err := Park(t.Context(), p.PID, nil, p.saved); err == nil {
			t.Fatal("parked twice")
		}
		before := p.rounds()
		for range 3 {
			p.wantWaiting(t, parked)
			p.stop(t)
		}
		p.wantWaiting(t, parked)
		if now := p.rounds(); now != before {
			t.Fatalf("threads ran while they were parked: %v, then %v", before, now)
		}
		// By a program that finds the process running.
		must(t, ReturnThreads(t.Context(), p.saved))
		must(t, ReturnThreads(t.Context(), p.saved))
		p.goesOn(t)
	}
}

func TestSignalsToAParkedProcessAreTakenOnceAfterwards(t *testing.T) {
	t.Parallel()
	p := startBorrowable(t)
	parked := p.park(t)
	must(t, p.Signal(unix.SIGTERM))
	must(t, unix.Tgkill(p.PID, p.tids()[4], unix.SIGUSR1))
	p.wantWaiting(t, parked)
	if p.Terminated.Load() != 0 || p.Poked.Load() != 0 {
		t.Fatal("a parked thread took a signal")
	}
	p.stop(t)
	must(t, ReturnThreads(t.Context(), p.saved))
	p.wantReturned(t)
	p.goesOn(t)
	eventually(t, "the signals", func() bool { return p.Terminated.Load() == 1 && p.Poked.Load() == 1 })
}

// TestNoSigcontWaitsForAParkedProcess: criu cannot restore an image with a pending SIGCONT.
func TestNoSigcontWaitsForAParkedProcess(t *testing.T) {
	for target, left := range map[string]proc.SignalSet{"borrowable": 0, "catching": 1 << (unix.SIGTSTP - 1)} {
		t.Run(target, func(t *testing.T) {
			t.Parallel()
			p := startTarget(t, target, len(jobs))
			parked := p.park(t)
			must(t, parked.Continue(p.Process))
			p.wantInWait(t, parked)
			if pending := p.pending(t); pending != left {
				t.Fatalf("signals %#x are pending, want %#x", pending, left)
			}
			must(t, ReturnThreads(t.Context(), p.saved))
			p.goesOn(t)
			eventually(t, "end of pending signals", func() bool { return p.pending(t) == 0 })
		})
	}
}

func (p *borrowable) pending(t *testing.T) proc.SignalSet {
	t.Helper()
	status, err := proc.ReadStatus(p.PID)
	must(t, err)
	return status.Pending
}

func TestAThreadThatIsNotParkedRunsOn(t *testing.T) {
	t.Parallel()
	p := startBorrowable(t)
	const compute = len(jobs) - 1
	// At times Go's scheduler has just told the thread to yield. It then waits for one that
	// is parked, which is no fault of the parking, and is tried again.
	for runs := false; !runs; {
		parked := p.park(t, p.tids()[compute])
		before := p.rounds()
		p.wantWaiting(t, parked)
		eventually(t, "the thread runs on, or has yielded", func() bool {
			runs = p.rounds()[compute] > before[compute]+2
			call, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/syscall", p.PID, p.tids()[compute]))
			yielded := err == nil && strings.HasPrefix(string(call), fmt.Sprintf("%d ", unix.SYS_FUTEX))
			if yielded && strings.HasPrefix(string(call), parked.waits()) {
				t.Fatal("it was parked, too")
			}
			return runs || yielded
		})
		now := p.rounds()
		if now[compute] = before[compute]; now != before {
			t.Fatalf("others ran: %v, then %v", before, now)
		}
		p.stop(t)
		must(t, ReturnThreads(t.Context(), p.saved))
		p.wantReturned(t)
		p.goesOn(t)
	}
}

func TestParkedThreadsCanBeBorrowed(t *testing.T) {
	t.Parallel()
	p := startBorrowable(t)
	parked := p.park(t)
	loan := p.saved + ".loan"
	b, err := Borrow(t.Context(), p.PID, p.tids(), loan)
	must(t, err)
	must(t, b.Madvise(t.Context(), []proc.Range{p.part(0, 64<<20)}, unix.MADV_POPULATE_WRITE))
	must(t, b.Return(t.Context()))
	before := p.rounds()
	p.wantWaiting(t, parked)
	if now := p.rounds(); now != before {
		t.Fatalf("they ran: %v, then %v", before, now)
	}
	p.stop(t)
	must(t, ReturnThreads(t.Context(), p.saved))
	p.goesOn(t)
}

// TestParkedThreadsOfAnImageAreFoundAgain, with this process in place of the one
// that was restored from it.
func TestParkedThreadsOfAnImageAreFoundAgain(t *testing.T) {
	t.Parallel()
	p := startBorrowable(t)
	parked, err := p.park(t).ForImage()
	must(t, err)
	data, err := json.Marshal(parked)
	must(t, err)
	var read Parked
	must(t, json.Unmarshal(data, &read))
	must(t, read.Validate())
	must(t, os.Remove(p.saved))
	must(t, read.WriteRestored(p.Process, p.saved))
	must(t, ReturnThreads(t.Context(), p.saved))
	p.wantReturned(t)
	must(t, p.Signal(unix.SIGCONT))
	p.goesOnAfterRestore(t)
	read.Threads = append(read.Threads, savedThread{TID: 1 << 22})
	if err := read.WriteRestored(p.Process, p.saved); err == nil {
		t.Fatal("a thread that is not there was found")
	}
}

// goesOnAfterRestore is goesOn for threads whose sleep was cut short, as by a restore with
// criu.
func (p *borrowable) goesOnAfterRestore(t *testing.T) {
	t.Helper()
	for i, job := range jobs {
		if job.name == "read" || job.name == "compute" {
			eventually(t, job.name+" goes on", func() bool {
				if job.name == "read" {
					_, err := p.feeds[0].Write([]byte{p.fed})
					must(t, err)
					p.fed++
				}
				return p.Threads[i].Rounds.Load() > 0 && p.Threads[i].Failed.Load() == 0
			})
		}
	}
}

func TestDamagedParkedThreadsAreRefused(t *testing.T) {
	good := Parked{savedThreads: savedThreads{PID: 1, Instruction: 2, Threads: []savedThread{{TID: 3}}}, Arch: runtime.GOARCH}
	for name, damage := range map[string]func(*Parked){
		"another architecture": func(p *Parked) { p.Arch = "vax" },
		"no process":           func(p *Parked) { p.PID = 0 },
		"no instruction":       func(p *Parked) { p.Instruction = 0 },
		"no threads":           func(p *Parked) { p.Threads = nil },
		"no thread's id":       func(p *Parked) { p.Threads = []savedThread{{}} },
	} {
		t.Run(name, func(t *testing.T) {
			p := good
			damage(&p)
			if err := p.Validate(); err == nil {
				t.Fatal("not refused")
			}
		})
	}
	var p Parked
	for _, text := range []string{`{"threads":[{"registers":"AAAA"}]}`, `{"threads":[{"registers":"!"}]}`, `{"threads":[{"registers":{"Rax":1}}]}`} {
		if err := json.Unmarshal([]byte(text), &p); err == nil {
			t.Errorf("%s: not refused", text)
		}
	}
}

// TestThreadsThatRunAlreadyAreLeftAlone: the process that put their registers back was
// killed before it removed the file, and somebody has continued the threads. They have
// other registers and another mask since.
func TestThreadsThatRunAlreadyAreLeftAlone(t *testing.T) {
	t.Parallel()
	p := startBorrowable(t)
	p.park(t)
	file, err := threadsKind.Read(p.saved)
	must(t, err)
	must(t, ReturnThreads(t.Context(), p.saved))
	p.goesOn(t)
	const blockedThen = 1 << (unix.SIGUSR2 - 1)
	for i := range file.Threads {
		file.Threads[i].Mask = blockedThen
	}
	must(t, file.write(p.saved))
	must(t, ReturnThreads(t.Context(), p.saved))
	for _, thread := range file.Threads {
		status, err := proc.ReadStatus(thread.TID)
		if must(t, err); status.Blocked == blockedThen {
			t.Fatalf("thread %d, which ran, has got the mask of then again: %#x", thread.TID, status.Blocked)
		}
	}
	p.goesOn(t)
}
