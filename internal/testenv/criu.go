package testenv

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cucriu/criuutil"
	"cucriu/internal/kit/proc"
)

// CriuRun is the result of a criu that has ended.
type CriuRun struct {
	Err error
	Log string // criu's log, with the hook's lines in it
}

// Lines returns the lines of the log that help when a test fails: the hook's lines, and
// criu's errors and warnings.
func (r CriuRun) Lines() string {
	var lines []string
	for line := range strings.Lines(r.Log) {
		if strings.Contains(line, "Error") || strings.Contains(line, "level=") || strings.Contains(line, "cucriu") || strings.Contains(line, "cuda_plugin:") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// CriuCommand returns a criu command with the hook as its action script.
func (h *Host) CriuCommand(verb, dir string, args ...string) *exec.Cmd {
	h.t.Helper()
	return h.CriuCommandScripts(verb, dir, []string{h.HookBin}, args...)
}

// CriuCommandScripts returns a criu command with several action scripts. criu runs the last
// one first.
func (h *Host) CriuCommandScripts(verb, dir string, scripts []string, args ...string) *exec.Cmd {
	h.t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		h.t.Fatal(err)
	}
	all := []string{verb, "--no-default-config", "-D", dir, "-o", verb + ".log", "-v4"}
	if verb == "dump" {
		all = append(all, "--timeout", "60") // in which the tree is seized; a busy machine may need more than criu's 10 s
	}
	for _, script := range scripts {
		all = append(all, "--action-script", script)
	}
	return h.Command(Criu(h.t), append(all, args...)...)
}

// RunCriu runs criu with the hook to its end.
func (h *Host) RunCriu(verb, dir string, args ...string) CriuRun {
	h.t.Helper()
	return h.run(verb, dir, h.CriuCommand(verb, dir, args...))
}

// run runs a criu to its end. If it hangs, run shows what the processes do, and ends it.
func (h *Host) run(verb, dir string, cmd *exec.Cmd) CriuRun {
	h.t.Helper()
	hung := time.AfterFunc(2*Soon, func() {
		h.t.Logf("criu (process %d) hangs", cmd.Process.Pid)
		h.diagnose()
		_ = cmd.Process.Kill()
	})
	cmd.WaitDelay = 10 * time.Second // its children may keep its output open
	out, err := cmd.CombinedOutput()
	hung.Stop()
	log, _ := os.ReadFile(filepath.Join(dir, verb+".log"))
	run := CriuRun{Err: err, Log: string(out) + string(log)}
	h.t.Logf("criu %s: %v\n%s", verb, err, run.Lines())
	return run
}

// Dump dumps a job and fails the test if that does not succeed. Afterwards the job is gone,
// with its pids and its GPU memory, unless args tell criu to leave it or to take it from a
// control group, which must be thawed before it can end. If it is left running, Dump repeats
// until the image can be restored although the job has gone on.
func (h *Host) Dump(j *Job, args ...string) string {
	h.t.Helper()
	leaves := slices.ContainsFunc(args, func(arg string) bool {
		return arg == "-R" || arg == "-s" || strings.HasPrefix(arg, "--leave-")
	})
	tree, _ := proc.Tree(j.PID) // criu says what is wrong with the pid
	for {
		dir := filepath.Join(h.t.TempDir(), "images")
		run := h.TryDump(j, dir, args...)
		if run.Err != nil {
			h.t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
		}
		if !leaves && !slices.Contains(args, "--freeze-cgroup") {
			Eventually(h.t, Soon, "what criu has killed is reaped", func() bool { // criu does not wait for it
				return !slices.ContainsFunc(tree, func(pid int) bool { return processState(pid) != 0 })
			})
		}
		if !slices.Contains(args, "--leave-running") || !CaughtWriting(h.t, dir) {
			return dir
		}
	}
}

// TryDump dumps a job into a folder.
func (h *Host) TryDump(j *Job, dir string, args ...string) CriuRun {
	h.t.Helper()
	return h.RunCriu("dump", dir, append([]string{"-t", strconv.Itoa(j.PID)}, args...)...)
}

// Restore restores a job and fails the test if that does not succeed.
func (h *Host) Restore(dir string, args ...string) {
	h.t.Helper()
	run := h.TryRestore(dir, args...)
	if run.Err != nil {
		h.t.Fatalf("criu restore: %v\n%s", run.Err, run.Lines())
	}
}

// TryRestore restores a job from a folder and detaches from it.
func (h *Host) TryRestore(dir string, args ...string) CriuRun {
	h.t.Helper()
	return h.RunCriu("restore", dir, append([]string{"-d"}, args...)...)
}

// NeedsTCP skips a test where criu cannot dump TCP sockets: CRIU before 4.2 on kernel 6.16
// and newer.
func NeedsTCP(t testing.TB) {
	t.Helper()
	text, err := criuutil.CriuVersion(t.Context(), Criu(t))
	if err != nil {
		t.Fatal(err)
	}
	release, err := proc.System{}.KernelVersion()
	if err != nil {
		t.Fatal(err)
	}
	criu, criuErr := criuutil.ParseVersion(text)
	kernel, kernelErr := criuutil.ParseVersion(release)
	if err := errors.Join(criuErr, kernelErr); err != nil {
		t.Fatal(err)
	}
	if criu.Before(4, 2) && !kernel.Before(6, 16) {
		t.Skipf("CRIU %s cannot dump TCP sockets on kernel %s", text, release)
	}
}

// WithCriusPlugin lets criu on this host load its own CUDA plugin, and run cucriu's cuda-checkpoint from
// PATH. It returns what tells criu where the plugin is. The test is skipped if the plugin could not be had.
func (h *Host) WithCriusPlugin() []string {
	h.t.Helper()
	dir := os.Getenv("CUCRIU_TEST_CRIU_PLUGIN")
	if dir == "" {
		h.t.Skip("criu's CUDA plugin is not there: scripts/provide-criu-plugin.sh says why")
	}
	bin := h.t.TempDir()
	if err := os.Symlink(h.CUDACheckpoint(), filepath.Join(bin, "cuda-checkpoint")); err != nil {
		h.t.Fatal(err)
	}
	h.Setenv("PATH", bin+":"+h.env("PATH"))
	if !RealDriver() {
		h.Setenv("CRIU_FAULT", "138") // the plugin is on without /proc/driver/nvidia
	}
	return []string{"--libdir", dir}
}

// CUDACheckpoint returns the path of cucriu's cuda-checkpoint.
func (h *Host) CUDACheckpoint() string {
	h.t.Helper()
	return Artefact(h.t, "make build", "bin", "cuda-checkpoint")
}

// RunCriuAlone runs criu to its end without the hook.
func (h *Host) RunCriuAlone(verb, dir string, args ...string) CriuRun {
	h.t.Helper()
	return h.run(verb, dir, h.CriuCommandScripts(verb, dir, nil, args...))
}
