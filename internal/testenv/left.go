package testenv

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cucriu/cudackpt"
	"cucriu/internal/kit/proc"
)

// Running lists the processes in this pid namespace that run a program. It includes those
// that are ending and may still hold a lock.
func Running(program string) []int {
	name := filepath.Base(program)
	return slices.DeleteFunc(PIDs(), func(pid int) bool { return ProcessName(pid) != name })
}

// ProcessName returns the name of a process; "" if it is gone.
func ProcessName(pid int) string {
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(comm))
}

// CommandLine returns the arguments of a process, of which the first is the program.
func CommandLine(pid int) []string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.Split(strings.TrimRight(string(data), "\x00"), "\x00")
}

// PIDs lists the processes of this pid namespace. Tests ask for it so often that the directories
// of the processes must not be read for it, as [filepath.Glob] does.
func PIDs() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// NotEnding leaves out the processes that have ended or are ending.
func NotEnding(pids []int) []int {
	return slices.DeleteFunc(pids, func(pid int) bool {
		process, err := proc.Open(pid)
		if err != nil {
			return true
		}
		defer process.Close()
		return process.Exiting()
	})
}

// Held names what keeps a thread of the processes from running: a stop, a tracer, a parked
// thread's wait with all signals blocked, or the driver. It is empty if nothing does.
func Held(t testing.TB, driver *cudackpt.Driver, pids []int) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Soon)
	defer cancel()
	for _, pid := range pids {
		held := HeldThread(pid)
		// The C library, too, blocks all signals while it creates a thread.
		for range 100 {
			if !strings.Contains(held, blockedMask) {
				break
			}
			time.Sleep(10 * time.Millisecond)
			held = HeldThread(pid)
		}
		if held != "" {
			return held // the driver could not be asked
		}
		process := driver.Process(pid)
		if _, err := process.RestoreThreadID(ctx); err != nil {
			continue // a parent without CUDA
		}
		state, err := process.State(ctx)
		if err == nil && state != cudackpt.StateRunning || ctx.Err() != nil {
			return fmt.Sprintf("process %d is %v (%v)", pid, state, err)
		}
	}
	return ""
}

// HeldThread names a thread of a process that is stopped, traced or parked. The C library, too,
// blocks all signals for a moment while it creates a thread.
func HeldThread(pid int) string {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/status", pid, task.Name()))
		for line := range strings.Lines(string(data)) {
			if strings.HasPrefix(line, "State:\tT") || strings.HasPrefix(line, "State:\tt") ||
				strings.HasPrefix(line, "TracerPid:") && line != "TracerPid:\t0\n" || blocksAll(line) {
				return fmt.Sprintf("thread %s of process %d: %s", task.Name(), pid, strings.TrimSpace(line))
			}
		}
	}
	return ""
}

// blockedMask is the name of the line in a status file that has the signals which a thread
// blocks.
const blockedMask = "SigBlk"

// blocksAll reports whether a line of a status file says that a thread blocks even the two
// signals that the C library keeps for itself. Only a parked thread does.
func blocksAll(line string) bool {
	const ofTheLibrary = 1<<(32-1) | 1<<(33-1)
	mask, found := strings.CutPrefix(line, blockedMask+":\t")
	blocked, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
	return found && err == nil && blocked&ofTheLibrary == ofTheLibrary
}
