package inject

import (
	"math"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAWaitThatNobodyKnowsTheEndOfGoesOn if it has none, or names it: for the others, only the kernel knows it.
func TestAWaitThatNobodyKnowsTheEndOfGoesOn(t *testing.T) {
	const bitset, private, realtime = 9, 128, 256
	minus := func(n int64) uint64 { return uint64(-n) }
	for name, test := range map[string]struct {
		call, result, rsi, rdx uint64
		goesOn                 bool
	}{
		"poll without end":          {unix.SYS_POLL, minus(516), 0, math.MaxUint32, true},
		"poll":                      {unix.SYS_POLL, minus(516), 0, 5000, false},
		"poll that failed":          {unix.SYS_POLL, minus(4), 0, math.MaxUint32, false},
		"nanosleep":                 {unix.SYS_NANOSLEEP, minus(516), 0, math.MaxUint32, false},
		"outside of a call":         {math.MaxUint64, minus(516), 0, 0, false},
		"futex until a time":        {unix.SYS_FUTEX, minus(516), bitset | private, 7, true},
		"futex until a time of day": {unix.SYS_FUTEX, minus(516), bitset | private | realtime, 7, true},
		"futex for a time":          {unix.SYS_FUTEX, minus(516), private, 7, false},
		"read":                      {unix.SYS_READ, minus(512), 0, 0, false}, // which the kernel does by itself
	} {
		regs := registers{Orig_rax: test.call, Rax: test.result, Rip: 0x1002, Rdi: 1, Rsi: test.rsi, Rdx: test.rdx}
		want := regs
		if test.goesOn {
			want.Rax = minus(514)
		}
		if regs.keepWaiting(); regs != want {
			t.Errorf("%s: got %+v, want %+v", name, regs, want)
		}
	}
}
