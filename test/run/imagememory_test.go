package run

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

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
		w := emptyWorld(t)
		file := filepath.Join(w.work, "program.py")
		testenv.WriteFile(t, file, prelude+fmt.Sprintf(`
held = os.urandom(%d << 20)
os.makedirs("cuda", exist_ok=True)
gpu = subprocess.Popen([own, "--dir", work + "/cuda", "--mib", "1"])
def tick(n):
    assert gpu.poll() is None
`, held)+loop)
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

		limit(held * 3)
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
