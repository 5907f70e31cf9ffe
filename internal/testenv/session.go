package testenv

import (
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/internal/core/journal"
	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/proc"
)

// Sessions lists the host's sessions, the oldest first.
func (h *Host) Sessions() []*journal.Session {
	h.t.Helper()
	sessions, err := journal.List(h.RunDir)
	if err != nil {
		h.t.Fatal(err)
	}
	return sessions
}

// Step returns the step that the latest session has begun.
func (h *Host) Step() string {
	if sessions := h.Sessions(); len(sessions) > 0 {
		return string(sessions[len(sessions)-1].Step)
	}
	return ""
}

// LastOutcome returns the outcome of the latest session. It is empty while the session is
// open.
func (h *Host) LastOutcome() string {
	if sessions := h.Sessions(); len(sessions) > 0 {
		return string(sessions[len(sessions)-1].Outcome)
	}
	return ""
}

// RestoreOutcome returns the outcome of the latest session if that is a restore. It is
// empty while the restore is open or has not begun.
func (h *Host) RestoreOutcome() string {
	if sessions := h.Sessions(); len(sessions) > 0 && sessions[len(sessions)-1].Kind == journal.KindRestore {
		return string(sessions[len(sessions)-1].Outcome)
	}
	return ""
}

// WaitOutcome waits until the latest session is closed, and fails the test if its outcome
// is not the one wanted.
func (h *Host) WaitOutcome(want string) {
	h.t.Helper()
	defer func() {
		if h.LastOutcome() == "" {
			out, err := h.Cucriu("status")
			h.t.Logf("cucriu status: %v\n%s", err, out)
			h.diagnose()
		}
	}()
	Eventually(h.t, Soon, "the session is closed", func() bool { return h.LastOutcome() != "" })
	if got := h.LastOutcome(); got != want {
		h.t.Fatalf("outcome %q, want %q", got, want)
	}
}

// UseFailpoint makes the hook go wrong at a failpoint.
func (h *Host) UseFailpoint(point string) {
	h.t.Helper()
	if _, err := failpoint.Parse(point); err != nil {
		h.t.Fatal(err)
	}
	h.HookBin = Artefact(h.t, "make build", "build", "test", "cucriu-hook")
	h.Setenv("CUCRIU_FAILPOINT", point)
}

// KillHook kills the hook that a criu is running.
func (h *Host) KillHook(criu int) {
	h.t.Helper()
	killed := 0
	h.eachProcess(func(pid int, args []string, parent int) {
		if args[0] == h.HookBin && len(args) == 1 && parent == criu {
			h.kill(pid)
			killed++
		}
	})
	if killed != 1 {
		h.t.Fatalf("killed %d hooks, want 1", killed)
	}
}

// Watchers returns the pids of the watchers of the host's sessions.
func (h *Host) Watchers() []int {
	h.t.Helper()
	var pids []int
	h.eachProcess(func(pid int, args []string, _ int) {
		if len(args) == 3 && args[1] == "watch" && strings.HasPrefix(args[2], h.RunDir) {
			pids = append(pids, pid)
		}
	})
	return pids
}

// KillWatcher kills the watcher of the host's sessions.
func (h *Host) KillWatcher() {
	h.t.Helper()
	// The watcher of a session that has just been closed is about to end.
	Eventually(h.t, Soon, "there is one watcher", func() bool { return len(h.Watchers()) == 1 })
	watchers := h.Watchers()
	h.kill(watchers[0])
}

// kill kills a process of ours. Its locks are released only when its last thread has ended.
func (h *Host) kill(pid int) {
	h.t.Helper()
	process, err := proc.Open(pid)
	if err != nil {
		h.t.Fatal(err)
	}
	defer process.Close()
	if err := process.Signal(unix.SIGKILL); err != nil {
		h.t.Fatal(err)
	}
	Eventually(h.t, Soon, "it has ended", func() bool { return !process.Alive() })
}

// eachProcess visits every process.
func (h *Host) eachProcess(visit func(pid int, args []string, parent int)) {
	for _, pid := range PIDs() {
		if status, err := proc.ReadStatus(pid); err == nil {
			visit(pid, CommandLine(pid), status.PPID)
		}
	}
}

// Driver opens the host's driver in the test itself.
func (h *Host) Driver() *cudackpt.Driver {
	h.t.Helper()
	var options []cudackpt.Option
	for _, variable := range h.Env {
		switch name, value, _ := strings.Cut(variable, "="); name {
		case "CUCRIU_LIBCUDA":
			options = append(options, cudackpt.WithLibrary(value))
		case "CUCRIU_DRIVER_ROOT":
			options = append(options, cudackpt.WithRoot(value))
		case "CUDASIM_ROOT":
			// The simulated library reads its environment itself.
			h.t.Setenv(name, value)
		}
	}
	driver, err := cudackpt.Open(options...)
	if err != nil {
		h.t.Fatal(err)
	}
	return driver
}
