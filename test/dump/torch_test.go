package dump

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// needsGPUs marks a test that needs NVIDIA's driver, PyTorch, and this number of GPUs.
func needsGPUs(t *testing.T, gpus int, test func(t *testing.T, host *testenv.Host)) {
	t.Helper()
	if !testenv.RealDriver() {
		t.Skip("needs a GPU and PyTorch (make test-gpu)")
	}
	testenv.Isolated(t, func(t *testing.T) { test(t, testenv.NewHost(t, gpus)) })
}

// trainingSteps is large enough that a dump in the middle leaves steps on both sides.
const trainingSteps = 300

// training is a PyTorch job.
type training struct {
	t    *testing.T
	dir  string
	rank []string // the folders of its CUDA processes
	job  *testenv.Job
}

func startTraining(t *testing.T, host *testenv.Host, script string, ranks int, args ...string) *training {
	t.Helper()
	run := &training{t: t, dir: t.TempDir()}
	run.rank = []string{run.dir}
	if ranks > 1 {
		run.rank = nil
		for i := range ranks {
			run.rank = append(run.rank, filepath.Join(run.dir, "rank-"+strconv.Itoa(i)))
		}
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatal(err)
	}
	script = testenv.Artefact(t, "make gpu-bundle", "test", "workload", "torch", script)
	pid := host.Spawn(run.dir, python, append([]string{script, "--dir", run.dir, "--steps", strconv.Itoa(trainingSteps)}, args...)...)
	run.job = testenv.JobOf(t, pid)
	return run
}

func (r *training) lines(rank int) int {
	data, _ := os.ReadFile(filepath.Join(r.rank[rank], "loss"))
	return strings.Count(string(data), "\n")
}

// waitSteps waits until every rank has done n steps in total.
func (r *training) waitSteps(n int) {
	r.t.Helper()
	testenv.Eventually(r.t, 2*time.Minute, "training reaches step "+strconv.Itoa(n), func() bool {
		if !r.job.Alive() && n < trainingSteps {
			r.t.Fatalf("training has ended at step %d", r.lines(0))
		}
		for rank := range r.rank {
			if r.lines(rank) < n {
				return false
			}
		}
		return true
	})
}

func (r *training) waitDone() {
	r.t.Helper()
	r.waitSteps(trainingSteps)
	testenv.Eventually(r.t, time.Minute, "training ends", func() bool {
		for _, dir := range r.rank {
			if _, err := os.Stat(filepath.Join(dir, "done")); err != nil {
				return false
			}
		}
		return true
	})
}

// sameAs fails the test unless every loss is bit for bit the same as in another run.
func (r *training) sameAs(reference *training) {
	r.t.Helper()
	compare := testenv.Artefact(r.t, "make gpu-bundle", "test", "workload", "torch", "compare.py")
	for rank := range r.rank {
		out, err := exec.Command("python3", compare, filepath.Join(r.rank[rank], "loss"), filepath.Join(reference.rank[rank], "loss")).CombinedOutput()
		if err != nil {
			r.t.Fatalf("rank %d: losses differ from the uninterrupted run: %v\n%s", rank, err, out)
		}
		r.t.Logf("rank %d: %d losses equal the uninterrupted run's bit for bit", rank, r.lines(rank))
	}
}

func (r *training) uuid(rank int) string {
	r.t.Helper()
	var status struct{ UUID string }
	data, err := os.ReadFile(filepath.Join(r.rank[rank], "status"))
	if err == nil {
		err = json.Unmarshal(data, &status)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return status.UUID
}

func TestPyTorchTrainingIsBitIdentical(t *testing.T) {
	needsGPUs(t, 1, func(t *testing.T, host *testenv.Host) {
		reference := startTraining(t, host, "train.py", 1, "--mib", "256")
		reference.waitDone()
		run := startTraining(t, host, "train.py", 1, "--mib", "256", "--step-ms", "5")
		run.waitSteps(trainingSteps / 3)
		images := host.Dump(run.job)
		at := run.lines(0)
		uuids := host.UUIDs()
		if len(uuids) > 1 {
			host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\ngpus: {map: [{from: {index: 0}, to: {index: 1}}, {from: {index: 1}, to: {index: 0}}]}\n"))
		}
		host.Restore(images)
		run.waitDone()
		if at >= trainingSteps {
			t.Fatal("the dump came after the training had ended")
		}
		if to := slices.Index(uuids, run.uuid(0)); to != min(1, len(uuids)-1) {
			t.Fatalf("training ended on GPU %d of %v", to, uuids)
		}
		run.sameAs(reference)
	})
}

// TestCommandPyTorchTrainingIsBitIdentical does the same with preflight and cucriu's own
// commands, and twice in a row: first the training is left running, then it is moved.
func TestCommandPyTorchTrainingIsBitIdentical(t *testing.T) {
	needsGPUs(t, 1, func(t *testing.T, host *testenv.Host) {
		reference := startTraining(t, host, "train.py", 1, "--mib", "256")
		reference.waitDone()
		run := startTraining(t, host, "train.py", 1, "--mib", "256", "--step-ms", "5")
		run.waitSteps(trainingSteps / 4)
		t.Log(testenv.Exits(t, host, 0, "check", "-t", run.job.Root()))
		testenv.Exits(t, host, 0, "dump", "-t", run.job.Root(), "-D", testenv.NewImages(t), "-R")
		run.waitSteps(run.lines(0) + 10)
		images := testenv.NewImages(t)
		t.Log(testenv.Exits(t, host, 0, "dump", "-t", run.job.Root(), "-D", images))
		if run.lines(0) >= trainingSteps {
			t.Fatal("the dump came after the training had ended")
		}
		testenv.Eventually(t, testenv.Soon, "the job is reaped", run.job.Gone)
		uuids := host.UUIDs()
		if len(uuids) > 1 {
			host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\ngpus: {map: [{from: {index: 0}, to: {index: 1}}, {from: {index: 1}, to: {index: 0}}]}\n"))
		}
		t.Log(testenv.Exits(t, host, 0, "inspect", images))
		t.Log(testenv.Exits(t, host, 0, "restore", "-D", images))
		run.waitDone()
		if to := slices.Index(uuids, run.uuid(0)); to != min(1, len(uuids)-1) {
			t.Fatalf("training ended on GPU %d of %v", to, uuids)
		}
		run.sameAs(reference)
	})
}

// TestPyTorchRanksThatShareMemoryAreRefused: lock and checkpoint would succeed, and the
// restore would lose them.
func TestPyTorchRanksThatShareMemoryAreRefused(t *testing.T) {
	needsGPUs(t, 2, func(t *testing.T, host *testenv.Host) {
		run := startTraining(t, host, "ranks.py", 2, "--step-ms", "5", "--share-memory")
		run.waitSteps(20)
		const refused = 3
		out := testenv.Exits(t, host, refused, "dump", "-t", run.job.Root(), "-D", testenv.NewImages(t), "--tcp-established", "--network-lock", "skip")
		if !strings.Contains(out, "shared-gpu-memory") {
			t.Fatalf("refused for another reason:\n%s", out)
		}
		run.waitSteps(run.lines(0) + 20)
		_ = unix.Kill(-run.job.PID, unix.SIGKILL)
	})
}

func TestPyTorchRanksOverNCCLAreBitIdentical(t *testing.T) {
	needsGPUs(t, 2, func(t *testing.T, host *testenv.Host) {
		reference := startTraining(t, host, "ranks.py", 2)
		reference.waitDone()
		run := startTraining(t, host, "ranks.py", 2, "--step-ms", "5")
		run.waitSteps(trainingSteps / 3)
		// NCCL keeps an unlinked file of 33 MiB in /dev/shm. It communicates over loopback
		// connections whose ends are both in the tree, so no packets need to be blocked
		// meanwhile.
		images := host.Dump(run.job, "--tcp-established", "--network-lock", "skip", "--ghost-limit", "256M")
		// NCCL's listening sockets cannot be bound again on this host while connections
		// that they have accepted are in TIME_WAIT.
		testenv.Eventually(t, 90*time.Second, "no connection is in TIME_WAIT", noTimeWait)
		host.Restore(images, "--tcp-established", "--network-lock", "skip")
		run.waitDone()
		run.sameAs(reference)
	})
}

func noTimeWait() bool {
	data, err := os.ReadFile("/proc/net/tcp")
	return err == nil && !strings.Contains(string(data), " 06 00000000:00000000 03:")
}

func TestPyTorchLoaderWorkersGoThrough(t *testing.T) {
	needsGPUs(t, 1, func(t *testing.T, host *testenv.Host) {
		reference := startTraining(t, host, "loader.py", 1)
		reference.waitDone()
		run := startTraining(t, host, "loader.py", 1, "--step-ms", "5")
		run.waitSteps(20)
		host.Restore(host.Dump(run.job))
		run.waitDone()
		run.sameAs(reference)
	})
}
