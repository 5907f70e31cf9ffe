package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// diagnose shows what the processes of the test are doing when something hangs: the states and
// system calls of their threads, the goroutines of hooks and watchers (by SIGQUIT, in criu's log and theirs) and, if
// there is a debugger, the stacks of the jobs.
func (h *Host) diagnose() {
	h.t.Helper()
	jobs, hooks := ShowThreads(h.t)
	for _, pid := range hooks {
		_ = unix.Kill(pid, unix.SIGQUIT)
	}
	time.Sleep(time.Second)
	logs, _ := filepath.Glob(filepath.Join(h.RunDir, "sessions", "*", "watcher.log"))
	for _, file := range logs {
		if log, _ := os.ReadFile(file); len(log) > 0 {
			h.t.Logf("%s\n%s", file, log)
		}
	}
	debugger, err := exec.LookPath("cuda-gdb")
	if err != nil {
		return
	}
	for _, pid := range jobs {
		cmd := exec.Command("timeout", "-s", "KILL", "30", debugger, "-p", strconv.Itoa(pid), "-batch", "-ex", "thread apply all bt 12")
		cmd.Env = append(os.Environ(), "CUDBG_USE_LEGACY_DEBUGGER=1")
		out, err := cmd.CombinedOutput()
		h.t.Logf("stacks of process %d: %v\n%s", pid, err, out)
	}
}

// ShowThreads shows the states and system calls of the threads of jobs, hooks and criu, and
// what watchers have written. It returns the jobs and the hooks.
func ShowThreads(t testing.TB) (jobs, hooks []int) {
	t.Helper()
	statuses, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*/stat")
	for _, file := range statuses {
		thread := filepath.Dir(file)
		pid, _ := strconv.Atoi(strings.Split(thread, "/")[2])
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		isHook, isJob := strings.HasSuffix(exe, "/cucriu-hook"), strings.Contains(exe, "cudawork") || strings.Contains(exe, "python")
		if err != nil || pid == os.Getpid() || !isHook && !isJob && !strings.Contains(exe, "criu") {
			continue
		}
		line := exe
		for _, name := range []string{"comm", "stat", "wchan", "syscall"} {
			data, _ := os.ReadFile(filepath.Join(thread, name))
			text := strings.TrimSpace(string(data))
			if name == "stat" {
				text = text[strings.LastIndexByte(text, ')')+1:][:2]
			}
			line += " | " + text
		}
		t.Logf("%s: %s", thread, line)
		switch leader := filepath.Base(thread) == strconv.Itoa(pid); {
		case leader && isHook:
			hooks = append(hooks, pid)
			arguments, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if _, session, is := strings.Cut(strings.TrimRight(string(arguments), "\x00"), "\x00watch\x00"); is {
				log, _ := os.ReadFile(filepath.Join(session, "watcher.log"))
				record, _ := os.ReadFile(filepath.Join(session, "session.json"))
				t.Logf("%s\n%s%s", session, log, record)
			}
		case leader && isJob:
			jobs = append(jobs, pid)
		}
	}
	return jobs, hooks
}
