package inject

import (
	"math"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/proc"
)

// TestAWaitGoesOnForTheTimeThatIsLeft by registers that make it anew.
func TestAWaitGoesOnForTheTimeThatIsLeft(t *testing.T) {
	const bitset, private, realtime = 9, 128, 256
	minus := func(n int64) uint64 { return uint64(-n) }
	for name, test := range map[string]struct {
		call, result uint64
		rdi, rsi     uint64
		rdx          uint64
		left         time.Duration
		wants        uint64 // the call; 0: the registers stay as they are
		wantRdx      uint64
	}{
		"poll without end":             {call: unix.SYS_POLL, result: minus(516), rdi: 1, rdx: math.MaxUint32, wants: unix.SYS_POLL, wantRdx: math.MaxUint32},
		"poll":                         {call: unix.SYS_POLL, result: minus(516), rdi: 1, rdx: 5000, left: 1500*time.Millisecond + 1, wants: unix.SYS_POLL, wantRdx: 1501},
		"poll, nobody knows":           {call: unix.SYS_POLL, result: minus(516), rdi: 1, rdx: 5000},
		"poll that failed":             {call: unix.SYS_POLL, result: minus(4), rdi: 1, rdx: 5000, left: time.Second},
		"outside of a call":            {call: math.MaxUint64, result: minus(516), left: time.Second},
		"nanosleep":                    {call: unix.SYS_NANOSLEEP, result: minus(516), rdi: 1, rsi: 2, left: time.Minute, wants: unix.SYS_POLL, wantRdx: 60_000},
		"clock_nanosleep":              {call: unix.SYS_CLOCK_NANOSLEEP, result: minus(516), rdx: 3, left: 1, wants: unix.SYS_POLL, wantRdx: 1},
		"nanosleep of years":           {call: unix.SYS_NANOSLEEP, result: minus(516), rdi: 1, left: 1000 * time.Hour},
		"nanosleep, nobody knows":      {call: unix.SYS_NANOSLEEP, result: minus(516), rdi: 1},
		"futex until a time":           {call: unix.SYS_FUTEX, result: minus(516), rsi: bitset | private, rdx: 7, wants: unix.SYS_FUTEX, wantRdx: 7},
		"futex until a time of day":    {call: unix.SYS_FUTEX, result: minus(516), rsi: bitset | private | realtime, wants: unix.SYS_FUTEX},
		"futex for a time":             {call: unix.SYS_FUTEX, result: minus(516), rsi: private, left: time.Second},
		"a call that nobody has noted": {call: unix.SYS_RECVMSG, result: minus(516), left: time.Second},
	} {
		regs := registers{Orig_rax: test.call, Rax: test.result, Rip: 0x1002, Rdi: test.rdi, Rsi: test.rsi, Rdx: test.rdx}
		before := regs
		regs.waitOn(test.left)
		want := before
		if test.wants != 0 {
			want.Rip, want.Rax, want.Orig_rax, want.Rdx = 0x1000, test.wants, math.MaxUint64, test.wantRdx
			if test.call == unix.SYS_NANOSLEEP || test.call == unix.SYS_CLOCK_NANOSLEEP {
				want.Rdi, want.Rsi = 0, 0
			}
		}
		if regs != want {
			t.Errorf("%s: got %+v, want %+v", name, regs, want)
		}
	}
}

// TestHowLongAThreadStillWaitsIsNoted before it is stopped, and kept after that.
func TestHowLongAThreadStillWaitsIsNoted(t *testing.T) {
	t.Parallel()
	const limit = 1000 * time.Second
	begun := time.Now()
	cmd := exec.Command("sleep", "1000")
	must(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	process, err := proc.Open(cmd.Process.Pid)
	must(t, err)
	defer process.Close()
	tid := process.PID
	var waits Waits
	eventually(t, "it has slept for a while", func() bool {
		waits = NoteWaits(process, nil)
		return waits[tid].left != 0 && waits[tid].left < limit-200*time.Millisecond
	})
	if slept := time.Since(begun); waits[tid].left < limit-slept {
		t.Errorf("%v are left, and it began only %v ago", waits[tid].left, slept)
	}
	must(t, proc.Stop(t.Context(), process))
	after := NoteWaits(process, waits)
	if after[tid] != waits[tid] {
		t.Errorf("noted %+v before the stop, and %+v after it", waits[tid], after[tid])
	}
	if after := NoteWaits(process, nil); len(after) != 0 {
		t.Errorf("noted %+v of a process that is stopped", after)
	}
	call := waits[tid].call
	regs := registers{Orig_rax: uint64(call.Number), Rip: call.PC, Rdi: call.Arguments[0], Rsi: call.Arguments[1], Rdx: call.Arguments[2]}
	if left := waits.left(tid, &regs); left <= 0 || left > waits[tid].left {
		t.Errorf("%v are left of %v", left, waits[tid].left)
	}
	regs.Rdx++
	if left := waits.left(tid, &regs); left != 0 {
		t.Errorf("%v are left of another call", left)
	}
}
