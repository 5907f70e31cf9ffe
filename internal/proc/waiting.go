package proc

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Call is a system call in which a thread waits.
type Call struct {
	Number    int64
	Arguments [6]uint64
	SP, PC    uint64
}

// WaitsIn returns the system call in which a thread waits, as /proc/PID/task/TID/syscall has it. It reports false if the
// thread runs, is stopped outside of one, or has ended.
func WaitsIn(pid, tid int) (call Call, waits bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/syscall", pid, tid))
	fields := strings.Fields(string(text))
	if err != nil || len(fields) != 9 {
		return Call{}, false
	}
	if call.Number, err = strconv.ParseInt(fields[0], 10, 64); err != nil || call.Number < 0 {
		return Call{}, false
	}
	var numbers [8]uint64
	for i, field := range fields[1:] {
		if numbers[i], err = strconv.ParseUint(field, 0, 64); err != nil {
			return Call{}, false
		}
	}
	copy(call.Arguments[:], numbers[:])
	call.SP, call.PC = numbers[6], numbers[7]
	return call, true
}

// SleptFor returns for how long a thread that waits has had no CPU. It reports false if the kernel does not say
// (CONFIG_SCHED_DEBUG). It may be called only on an OS thread of its own ([OnOwnThread]), which it moves to the CPU on which
// the other one ran last: the kernel notes the time by the clock of that CPU. The time in which that CPU served interrupts is
// not counted.
func SleptFor(pid, tid int) (slept time.Duration, known bool) {
	stat, err := ThreadStat(pid, tid)
	if err != nil {
		return 0, false
	}
	var cpu unix.CPUSet
	cpu.Set(int(stat.Processor))
	if unix.SchedSetaffinity(0, &cpu) != nil {
		return 0, false
	}
	now, known := ranLast("thread-self")
	last, same := ranLast(fmt.Sprintf("%d/task/%d", pid, tid))
	return now - last, known && same && now >= last
}

// ranLast returns when a thread ran last, by the clock of its CPU.
func ranLast(thread string) (time.Duration, bool) {
	text, err := os.ReadFile("/proc/" + thread + "/sched")
	if err != nil {
		return 0, false
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if strings.TrimSpace(name) == "se.exec_start" {
			milliseconds, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return time.Duration(milliseconds * float64(time.Millisecond)), err == nil
		}
	}
	return 0, false
}
