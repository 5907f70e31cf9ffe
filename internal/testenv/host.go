package testenv

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Host is a machine with GPUs: a simulated one, of which there may be many, or this machine
// with its real driver.
type Host struct {
	t       *testing.T
	Dir     string // of the simulated host; empty on the real one
	RunDir  string
	Env     []string
	HookBin string
	// Enter makes a command line run on the host, if that takes more than the environment.
	Enter func(name string, args []string) (string, []string)
}

// NewHost makes a simulated host with this number of GPUs, or uses the real one, which must
// have at least as many.
func NewHost(t *testing.T, gpus int, options ...string) *Host {
	t.Helper()
	h := &Host{t: t, HookBin: Artefact(t, "make build", "bin", "cucriu-hook")}
	h.RunDir = filepath.Join(t.TempDir(), "run")
	if RealDriver() {
		if here := realGPUs(); here < gpus {
			t.Skipf("needs %d GPUs, this machine has %d", gpus, here)
		}
		h.Env = append(os.Environ(), "CUCRIU_RUN_DIR="+h.RunDir)
	} else {
		h.Dir = filepath.Join(t.TempDir(), "host")
		run := Artefact(t, "make sim", "build", "cudasim", "cudasim-run")
		args := append([]string{"--gpus", strconv.Itoa(gpus), "--root", h.Dir}, options...)
		out, err := exec.Command(run, append(args, "--", "/usr/bin/env", "-0")...).Output()
		if err != nil {
			t.Fatalf("make a simulated host: %v%s", err, stderrOf(err))
		}
		h.Env = append(strings.Split(strings.TrimRight(string(out), "\x00"), "\x00"), "CUCRIU_RUN_DIR="+h.RunDir)
	}
	// A killed process or a watcher may still end, and a folder in which it writes cannot be removed.
	t.Cleanup(func() {
		for _, dir := range []string{h.RunDir, h.Dir} {
			for deadline := time.Now().Add(Soon); os.RemoveAll(dir) != nil && time.Now().Before(deadline); {
				time.Sleep(10 * time.Millisecond)
			}
		}
	})
	h.Setenv("CUCRIU_CONFIG", h.Config("version: 1\nlock: {timeout: 60s}\n")) // for a busy machine
	h.Setenv("CUCRIU_CRIU", Criu(t))
	h.Setenv("COLUMNS", "1000") // for tests that look for text in one line
	return h
}

func realGPUs() int {
	nodes, _ := filepath.Glob("/proc/driver/nvidia/gpus/*")
	return len(nodes)
}

// GPUsUpTo returns n, for NewHost, or fewer if the real machine has fewer.
func GPUsUpTo(n int) int {
	if RealDriver() {
		n = max(1, min(n, realGPUs()))
	}
	return n
}

// T returns the test to which the host belongs.
func (h *Host) T() *testing.T { return h.t }

// For returns a copy of the host for another test or subtest. Variables that are set on the
// copy do not affect the original, or the other way round.
func (h *Host) For(t *testing.T) *Host {
	host := *h
	host.t, host.Env = t, slices.Clone(h.Env)
	return &host
}

// Patient is a configuration with which no library is left out because a busy machine lets it wait.
const Patient = "version: 1\nlock: {timeout: 100s, try: 30s}\n"

// Setenv sets a variable for everything that is started on the host from now on.
func (h *Host) Setenv(name, value string) {
	h.Env = append(h.Env, name+"="+value)
}

// Config writes a configuration file and returns its path.
func (h *Host) Config(text string) string {
	h.t.Helper()
	// In a directory that only root can write, as the hook demands.
	dir := filepath.Join(h.t.TempDir(), "etc")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		h.t.Fatal(err)
	}
	path := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
	return path
}

// UUIDs lists the GPUs of the host in the driver's order.
func (h *Host) UUIDs() []string {
	h.t.Helper()
	root := h.Dir
	if root == "" {
		root = "/"
	}
	files, err := filepath.Glob(filepath.Join(root, "proc/driver/nvidia/gpus/*/information"))
	if err != nil || len(files) == 0 {
		h.t.Fatalf("no GPUs below %s: %v", root, err)
	}
	var uuids []string
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			h.t.Fatal(err)
		}
		_, rest, _ := bytes.Cut(data, []byte("GPU UUID:"))
		uuids = append(uuids, string(bytes.Fields(rest)[0]))
	}
	return uuids
}

// Faults sets the fault rules of the simulated driver.
func (h *Host) Faults(rules ...string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.Dir, "faults"), []byte(strings.Join(rules, "\n")+"\n"), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// NVML sets what the simulated NVML reports about processes: "hide", "unknown", "add MIB",
// or "" for the truth.
func (h *Host) NVML(view string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.Dir, "nvml"), []byte(view+"\n"), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// SilenceKernelModule has the simulated kernel module answer no questions about memory.
func (h *Host) SilenceKernelModule() {
	h.t.Helper()
	WriteFile(h.t, filepath.Join(h.Dir, "nvrm"), "silent\n")
}

// DriverVersion sets the version that the simulated kernel module calls itself by.
func (h *Host) DriverVersion(version string) {
	h.t.Helper()
	file := filepath.Join(h.Dir, "proc/driver/nvidia/version")
	text, err := os.ReadFile(file)
	if err != nil {
		h.t.Fatal(err)
	}
	WriteFile(h.t, file, strings.ReplaceAll(string(text), "580.159.04", version))
}

// Command returns a command that runs on the host.
func (h *Host) Command(name string, args ...string) *exec.Cmd {
	if h.Enter != nil {
		name, args = h.Enter(name, args)
	}
	cmd := exec.CommandContext(h.t.Context(), name, args...)
	cmd.Env = h.Env
	return cmd
}

// Cucriu runs the cucriu command and returns what it printed.
func (h *Host) Cucriu(args ...string) (string, error) {
	h.t.Helper()
	out, err := h.CucriuCommand(args...).CombinedOutput()
	return string(out), err
}

// CucriuCommand returns a cucriu command. It fails on request if the hook does.
func (h *Host) CucriuCommand(args ...string) *exec.Cmd {
	h.t.Helper()
	return h.Command(filepath.Join(filepath.Dir(h.HookBin), "cucriu"), args...)
}

// Eventually waits until a condition holds, and fails the test if that takes too long. Looking takes a fifth of a
// CPU at most, because many tests wait at once.
func Eventually(t testing.TB, within time.Duration, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); ; {
		begin := time.Now()
		if condition() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
		time.Sleep(min(max(20*time.Millisecond, 9*time.Since(begin)), 250*time.Millisecond)) // leaves the cores to the job
	}
}

func stderrOf(err error) string {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return fmt.Sprintf(": %s", exit.Stderr)
	}
	return ""
}

// env returns the value of a variable on the host.
func (h *Host) env(name string) string {
	cmd := h.Command("")
	for _, variable := range slices.Backward(cmd.Environ()) {
		if value, found := strings.CutPrefix(variable, name+"="); found {
			return value
		}
	}
	return ""
}

// ExampleConfiguration returns the text of one of the example configuration files for criu,
// with the path of the tests' hook and an empty folder for libdir.
func (h *Host) ExampleConfiguration(name string) string {
	h.t.Helper()
	example, err := os.ReadFile(Artefact(h.t, "git checkout configs", "configs", name))
	if err != nil {
		h.t.Fatal(err)
	}
	return strings.NewReplacer(
		"/usr/libexec/cucriu/cucriu-hook", h.HookBin,
		"/usr/lib/cucriu/criu-plugins", h.t.TempDir(),
	).Replace(string(example))
}
