package migrate

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

// traces is what migrations could leave on a host, beside the job.
type traces struct {
	Processes []string
	Listening []string // addresses of TCP
	Connected int      // ends of TCP connections
	Files     []string // in memory, in the run directory, and at the top of /tmp
	Memory    uint64   // free bytes of /dev/shm
	GPUs      []uint64 // free bytes of each
	Tables    []string // of nftables
}

func tracesOn(t *testing.T, w *hosts.Job, h *hosts.Host) (found traces) {
	t.Helper()
	job := w.All(h)
	for _, p := range h.Processes() {
		if !slices.ContainsFunc(job, func(q hosts.Process) bool { return q.Outer == p.Outer }) {
			found.Processes = append(found.Processes, strings.Join(p.Args, " "))
		}
	}
	slices.Sort(found.Processes)
	found.sockets(h)
	found.files(h, w)
	found.Tables = h.Tables()
	var gpus []struct {
		Free uint64 `json:"free_bytes"`
	}
	if err := json.Unmarshal([]byte(h.Run("cucriu", "gpus", "--json")), &gpus); err != nil {
		t.Fatal(err)
	}
	for _, gpu := range gpus {
		found.GPUs = append(found.GPUs, gpu.Free)
	}
	free, err := strconv.ParseUint(strings.TrimSpace(h.Run("stat", "-f", "-c", "%f", "/dev/shm")), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	found.Memory = free
	return found
}

func (found *traces) sockets(h *hosts.Host) {
	for line := range strings.Lines(h.Run("cat", "/proc/net/tcp", "/proc/net/tcp6")) {
		switch fields := strings.Fields(line); fields[3] {
		case "0A":
			found.Listening = append(found.Listening, fields[1])
		case "01", "02", "03", "04", "05", "08", "09", "0B":
			found.Connected++
		}
	}
	slices.Sort(found.Listening)
}

// kept is what is there from the first use of cucriu and criu on: directories, locks and caches.
var kept = []string{"/run/cucriu/lock", "/run/cucriu/logs", "/run/cucriu/no-plugins", "/run/cucriu/sessions", "/run/criu.kdat"}

func (found *traces) files(h *hosts.Host, w *hosts.Job) {
	for _, pattern := range []string{"/dev/shm/*", "/dev/shm/*/*", "/run/*", "/run/cucriu/*", "/run/cucriu/migrations/*", "/tmp/*"} {
		matches, _ := filepath.Glob(h.Path(pattern))
		for _, path := range matches {
			path = strings.TrimPrefix(path, h.Path("/"))
			if path != w.Dir && path != "/run/cucriu/migrations" && !slices.ContainsFunc(kept, func(name string) bool { return strings.HasPrefix(path, name) }) {
				found.Files = append(found.Files, path)
			}
		}
	}
}

// belongings is what the processes of a job have, by their pids.
type belongings map[int]struct {
	Descriptors []string
	Threads     int
}

// belongingsOf leaves out processes that come and go, and files that are open for a moment.
func belongingsOf(w *hosts.Job, on *hosts.Host, of belongings) belongings {
	all := make(belongings)
	for _, p := range w.All(on) {
		if _, known := of[p.PID]; of != nil && !known {
			continue
		}
		has := all[p.PID]
		dir := fmt.Sprintf("/proc/%d", p.Outer)
		links, _ := filepath.Glob(filepath.Join(dir, "fd/*"))
		for _, link := range links {
			target, err := os.Readlink(link)
			kind, _, isKind := strings.Cut(target, ":[")
			fd, _ := strconv.Atoi(filepath.Base(link))
			switch {
			case err != nil || strings.Contains(target, "status"):
				continue
			case isKind:
				target = kind
			case strings.HasPrefix(target, "/run/nvidia/") || target == os.DevNull && fd > 2:
				target = "driver" // a child of a CUDA process has /dev/null in its place afterwards
			}
			has.Descriptors = append(has.Descriptors, fmt.Sprint(fd, " ", target))
		}
		threads, _ := os.ReadDir(filepath.Join(dir, "task"))
		has.Threads = len(threads)
		all[p.PID] = has
	}
	return all
}

// settled fails the test unless something becomes what it was.
func settled[T any](t *testing.T, what string, want T, now func() T) {
	t.Helper()
	var diff string
	ok := false
	defer func() {
		if !ok {
			t.Logf("%s is not as at the beginning (-then +now):\n%s", what, diff)
		}
	}()
	testenv.Eventually(t, testenv.Soon, what+" is as at the beginning", func() bool {
		diff = cmp.Diff(want, now())
		ok = diff == ""
		return ok
	})
}
