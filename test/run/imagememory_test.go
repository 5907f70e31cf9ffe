package run

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// limited has a command run in a control group.
func limited(cmd *exec.Cmd, group string) *exec.Cmd {
	enter := []string{"/bin/sh", "-c", `echo 0 >"$0" && exec "$@"`, filepath.Join(group, "cgroup.procs"), cmd.Path}
	cmd.Path, cmd.Args = enter[0], slices.Concat(enter, cmd.Args[1:])
	return cmd
}

// TestOfTwoStartsTheLastIsRefusedIfHostMemoryIsShort, before anything of it is created: without that, the kernel would
// end one of them. What the first one has by then is not counted twice.
func TestOfTwoStartsTheLastIsRefusedIfHostMemoryIsShort(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		group, limitFile := testenv.MemoryGroup(t)
		if group == "" {
			t.Skip("this kernel mounts no memory controller in which a group could be made")
		}
		limit := func(mib uint64) {
			testenv.WriteFile(t, filepath.Join(group, limitFile), strconv.FormatUint(mib<<20, 10))
		}
		const held = 400 // MiB; what else a start takes is less than a fourth of that
		const shared = held / 2
		w := emptyWorld(t)
		file := filepath.Join(w.work, "program.py")
		testenv.WriteFile(t, file, prelude+fmt.Sprintf(`
import mmap
held, shared = os.urandom(%[1]d << 20), mmap.mmap(-1, %[2]d << 20)
shared.write(os.urandom(%[2]d << 20))
os.makedirs("cuda", exist_ok=True)
gpu = subprocess.Popen([own, "--dir", work + "/cuda", "--mib", "1"])
def tick(n):
    assert gpu.poll() is None
`, held-shared, shared)+loop)
		cudawork := testenv.Artefact(t, "make workload", "build", "workload", "cudawork")
		w.command = []string{"python3", file, w.work, "-", cudawork}
		original, image := w.imageOf()
		start := func(job *world, host *testenv.Host) *run {
			args := []string{"run", "--dir", job.dir, "--image", image, "--private", w.work, "--every", "0"}
			return job.start(limited(host.CucriuCommand(args...), group), nil)
		}

		limit(held * 7 / 4)
		first, second := w.from(), w.from()
		s := w.stopAt("restore.watcher")
		one := start(first, s.host)
		s.await(one)
		two := start(second, w.host)
		two.says("of which jobs that are being restored still need 4")
		s.goOn()
		one.says("from image")
		one.ticksOn()
		two.ends(testenv.StatusRefused, "memory-cgroup", "the restore needs at least 4", "nothing was touched")
		if testenv.Exists(second.dir) {
			t.Errorf("left over: %s", tree(t, second.dir))
		}
		one.ticksOn()
		first.stop(0)
		one.ends(0)

		// The first has all by now, also the memory that processes share and none of them has touched since.
		limit(held * 5 / 2)
		first = w.from()
		s = w.stopAt("restore.back.free memory")
		one = start(first, s.host)
		s.await(one)
		two = start(second, w.host)
		two.says("from image")
		two.ticksOn()
		s.goOn()
		one.says("from image")
		for _, r := range []*run{one, two, original} {
			r.ticksOn()
			r.w.stop(0)
			r.ends(0)
		}
		w.noProcesses()
	})
}

// TestSharedMemoryIsPutBackOnlyIfThereIsRoom for it beside the processes, and nothing is created otherwise.
func TestSharedMemoryIsPutBackOnlyIfThereIsRoom(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		group, limitFile := testenv.MemoryGroup(t)
		if group == "" {
			t.Skip("this kernel mounts no memory controller in which a group could be made")
		}
		w := emptyWorld(t)
		file := filepath.Join(w.work, "program.py")
		testenv.WriteFile(t, file, prelude+`
with open("/dev/shm/shared", "wb") as shared: shared.write(os.urandom(300 << 20))
def tick(n): assert os.stat("/dev/shm/shared").st_size == 300 << 20
`+loop)
		w.command = []string{"python3", file, w.work, "-", "-"}
		original, image := w.imageOf()
		job := w.from()
		for _, mib := range []uint64{250, 600} {
			testenv.WriteFile(t, filepath.Join(group, limitFile), strconv.FormatUint(mib<<20, 10))
			args := []string{"run", "--dir", job.dir, "--image", image, "--private", w.work, "--every", "0"}
			r := job.start(limited(w.host.CucriuCommand(args...), group), nil)
			if mib == 250 {
				r.ends(testenv.StatusRefused, "memory-cgroup", "the restore needs at least 3", "raise its "+limitFile)
				if testenv.Exists(job.dir) {
					t.Errorf("left over: %s", tree(t, job.dir))
				}
				continue
			}
			r.says("from image")
			r.ticksOn()
			job.stop(0)
			r.ends(0)
		}
		w.stop(0)
		original.ends(0)
		w.noProcesses()
	})
}

// TestWhatARestoreNeedsIsNoMoreThanItTakes: children that share memory with their parent, shared memory, files without
// a name and private mappings of files are counted at most as often as they are there.
func TestWhatARestoreNeedsIsNoMoreThanItTakes(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		file := filepath.Join(w.work, "program.py")
		testenv.WriteFile(t, file, prelude+`
import ctypes, mmap, signal
M = 1 << 20
held = mmap.mmap(-1, 100 * M, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
held.write(os.urandom(100 * M))
shared = mmap.mmap(-1, 30 * M)
shared.write(os.urandom(30 * M))
unnamed = os.memfd_create("unnamed")
for _ in range(20): os.write(unnamed, os.urandom(M))
open("file", "wb").write(os.urandom(40 * M))
opened = open("file", "rb")
private = mmap.mmap(opened.fileno(), 40 * M, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
private[:10 * M] = os.urandom(10 * M)
for n in range(3):
    if os.fork() == 0:
        held.seek(n * 5 * M)
        held.write(os.urandom(5 * M))
        while True: signal.pause()
def tick(n): pass
`+loop)
		w.command = []string{"python3", file, w.work, "-", "-"}
		original, image := w.imageOf()
		need, err := criuimage.ReadRestored(image)
		must(t, err)
		job := w.from()
		r := job.startsFrom(w)
		tree, err := proc.Tree(job.place().Init.PID)
		must(t, err)
		takes := uint64(0)
		for _, pid := range tree {
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
			if err != nil {
				continue // of a kernel without it, the sum is too small, and the test fails
			}
			for line := range strings.Lines(string(data)) {
				if name, size, _ := strings.Cut(line, ":"); name == "Pss_Anon" || name == "Pss_Shmem" {
					var kib uint64
					_, err := fmt.Sscan(size, &kib)
					must(t, err)
					takes += kib << 10
				}
			}
		}
		const certain = (100 + 30 + 10 + 3*5) << 20
		takes += 20 << 20 // of the file without a name, which nobody has mapped
		t.Logf("it needs %d MiB, and takes %d MiB", need.Bytes>>20, takes>>20)
		// What children have written may be the parent's, for all one knows.
		if need.Bytes > takes || need.Bytes < certain-15<<20 {
			t.Errorf("counted are %d MiB, and the processes have %d MiB", need.Bytes>>20, takes>>20)
		}
		for _, r := range []*run{r, original} {
			r.w.stop(0)
			r.ends(0)
		}
	})
}
