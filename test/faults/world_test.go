package faults

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// world is where the cells of a row happen, one after the other: a simulated host, with its
// run directory and the image directory each on a small tmpfs, and a job. The job is a
// parent with two CUDA processes that spin in a synchronizing call. Each of these has forked
// workers. A cell leaves the job
// running for the next cell.
type world struct {
	host   *testenv.Host
	work   string // the job's program
	criu   string
	driver *cudackpt.Driver
	images string
	good   string // for a restore: an intact copy of the image
	files  string // a copy of the job's files at the time of the dump, which criu expects to find
	job    *testenv.Job
	target int // the pid of the CUDA process that is killed
	// neighbours are other jobs of the host that are dumped at the same time. It is nil if
	// no cell of the row needs them.
	neighbours *neighbours
}

func newWorld(t *testing.T, r row) *world {
	t.Helper()
	// The GPU has room for the job. It has no room for a second one beside it, nor for what
	// a restore of the job needs while the job runs.
	const context, margin = 1, 16
	room := 2*(r.memory()+context+margin) + 2
	gpus := 1
	if r.without[otherDump] == "" {
		gpus = 2 // the second one for the neighbours
	}
	w := &world{host: testenv.NewHost(t, gpus, "--mib-per-gpu", strconv.Itoa(room)), criu: testenv.Criu(t)}
	w.host.HookBin = testenv.Artefact(t, "make build", "build", "test", "cucriu-hook")
	w.work = testenv.Artefact(t, "make workload", "build", "workload", "cudawork")
	w.driver = w.host.Driver()
	w.images, w.good, w.files = filepath.Join(t.TempDir(), "images"), t.TempDir(), t.TempDir()
	testenv.SmallDisk(t, w.images, "128m")
	testenv.SmallDisk(t, w.host.RunDir, "4m")
	t.Cleanup(func() { w.clear(t) })
	if r.guest { // without the library, the fault would not happen
		w.host.Setenv("CUCRIU_CONFIG", w.host.Config(testenv.Patient))
	}
	if gpus > 1 {
		w.neighbours = newNeighbours(t, w.host)
	}
	return w
}

// begin provides the running job or, for a restore, its image.
func (w *world) begin(t *testing.T, r row) {
	t.Helper()
	w.makeRoom(t)
	if w.job == nil {
		// The parent reports that the child was killed, and criu does not restore a log
		// file that has grown since the dump.
		quiet := []string{"/bin/sh", "-c", `exec "$@" 2>/dev/null`, "sh"}
		if r.guest {
			quiet = []string{"/bin/sh", "-c", `LD_PRELOAD=$0 exec "$@" 2>/dev/null`, testenv.Guest(t)}
		}
		kind := []string{"--procs", "2"}
		if r.shares {
			kind = []string{"--ipc"}
		}
		w.job = w.host.StartUnder(quiet, 2, append(kind, "--loaders", r.workers(), "--mib", strconv.Itoa(r.memory()), "--spin", "event-sync", "--tick-ms", "60")...)
		w.target = w.job.MustStatus(1).PID
		w.empty(t, w.good)
	}
	w.empty(t, w.images)
	if !r.restores() {
		return
	}
	if entries, _ := os.ReadDir(w.good); len(entries) == 0 {
		if run := w.host.For(t).TryDump(w.job, w.good); run.Err != nil {
			t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
		}
		w.atRest(t)
		w.copy(t, w.jobDir(), w.files)
	} else {
		w.job.For(t, 2).Kill()
		w.awaitGPU(t)
		w.resetFiles(t)
	}
	w.copy(t, w.good, w.images)
}

// pids returns the pids of the job's processes as arguments. Before a restore, the job is not
// there, and its processes are known by what they last reported.
func (w *world) pids(t *testing.T) string {
	t.Helper()
	all := w.job.PIDs()
	if w.job.Alive() {
		tree, err := proc.Tree(w.job.PID)
		if err != nil {
			t.Fatal(err)
		}
		all = tree
	}
	var pids []string
	for _, pid := range all {
		pids = append(pids, strconv.Itoa(pid))
	}
	return strings.Join(pids, " ")
}

// imageFiles returns a pattern for the files that the hook has written into the image
// directory.
func (w *world) imageFiles() string { return filepath.Join(w.images, "cucriu*") }

// awaitGPU waits until killed processes hold no GPU memory any more.
func (w *world) awaitGPU(t *testing.T) {
	t.Helper()
	gpus, err := w.driver.HostGPUs()
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, testenv.Soon, "the GPU is free", func() bool {
		memory, err := w.driver.Memory(t.Context(), gpus[0].UUID)
		return err == nil && memory.Free == memory.Total
	})
}

func (w *world) jobDir() string { return filepath.Dir(w.job.Dirs[0]) }

// resetFiles gives the job its files back as they were at the dump, for a restore.
func (w *world) resetFiles(t *testing.T) { w.copy(t, w.files, w.jobDir()) }

func (w *world) copy(t *testing.T, from, to string) {
	t.Helper()
	w.empty(t, to)
	testenv.Copy(t, from, to)
}

// empty empties a folder.
func (w *world) empty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
}

// makeRoom removes the files with which a failpoint filled the file systems.
func (w *world) makeRoom(t *testing.T) {
	t.Helper()
	for _, dir := range []string{w.images, w.host.RunDir} {
		if err := os.Remove(filepath.Join(dir, "ballast")); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
}

// open reports whether a journal is open.
func (w *world) open() bool {
	for _, s := range w.host.Sessions() {
		if s.Outcome == "" {
			return true
		}
	}
	return false
}

// atRest waits until every journal is closed and no process of ours is at work, or until
// none is at work that could close one.
func (w *world) atRest(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, 2*testenv.Soon, "hook, watcher and criu have ended", func() bool {
		return len(testenv.Running(w.host.HookBin)) == 0 && len(testenv.Running(w.criu)) == 0
	})
}

// clear ends everything that a failed cell has left behind, so that the next cell begins
// afresh. The job ends, too.
func (w *world) clear(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, testenv.Soon, "what is left of the cell has ended", func() bool {
		left := slices.Concat(testenv.Running(w.host.HookBin), testenv.Running(w.criu), testenv.Running(w.work), workers())
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		return len(left) == 0
	})
	w.job = nil
	w.neighbours.free()
	w.makeRoom(t)
	w.empty(t, filepath.Join(w.host.RunDir, "sessions"))
}

// alive lists the processes of the job that have not ended and are not ending.
func (w *world) alive() []int { return testenv.NotEnding(testenv.Running(w.work)) }

// workers lists the workers that the job's CUDA processes have forked. They end with them.
func workers() []int { return testenv.NotEnding(testenv.Running(loader)) }

// loader is the name that a worker gives itself.
const loader = "loader"

// held returns what keeps a thread of the job from running, or "".
func (w *world) held(t *testing.T) string {
	t.Helper()
	return testenv.Held(t, w.driver, slices.Concat(w.alive(), workers()))
}
