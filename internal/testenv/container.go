package testenv

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// Runc returns the path of the runc that the tests use.
func Runc(t testing.TB) string {
	t.Helper()
	path := os.Getenv("CUCRIU_TEST_RUNC")
	if path == "" {
		t.Fatal("CUCRIU_TEST_RUNC is not set: run make test, or export CUCRIU_TEST_RUNC=$(make -s which-runc)")
	}
	return path
}

// Container is a [Job] in a runc container. cudawork is its first process, in namespaces
// and a control group of its own. It sees this machine's programs, the simulated host, and
// those of the host's GPUs that it is given.
type Container struct {
	*Job
	host   *Host
	id     string
	bundle string
}

// StartContainer is [Host.Start] in a container that sees these GPUs of the host. criu
// learns of the hook only from an action-script line in the configuration file that runc
// names.
func (h *Host) StartContainer(gpus []int, processes int, args ...string) *Container {
	h.t.Helper()
	c := &Container{Job: h.newJob(processes), host: h, id: "cucriu-" + strings.ToLower(rand.Text()), bundle: h.t.TempDir()}
	work := Artefact(h.t, "make workload", "build", "workload", "cudawork")
	libraries := h.env("LD_LIBRARY_PATH")
	mounts := append(HostPrograms(h.t, filepath.Join(c.bundle, "rootfs")),
		Mount{Source: "proc", Destination: "/proc", Type: "proc"},
		Bind(work, "/cudawork", "ro"),
		Bind(libraries, libraries, "ro"),
		Bind(h.Dir, h.Dir, "rw"),
		Bind(c.deviceNodes(gpus), filepath.Join(h.Dir, "dev"), "rw"),
		Bind(c.dir, "/job", "rw"),
	)
	c.Configure("")
	spec, err := json.MarshalIndent(map[string]any{
		"ociVersion": "1.0.2",
		"process": map[string]any{
			"cwd": "/", "user": map[string]int{"uid": 0, "gid": 0}, "env": []string{"CUDASIM_ROOT=" + h.Dir, "LD_LIBRARY_PATH=" + libraries},
			"args": append([]string{"/cudawork", "--dir", "/job"}, args...),
		},
		"root":        map[string]any{"path": "rootfs"},
		"mounts":      mounts,
		"annotations": map[string]string{"org.criu.config": c.configuration()},
		"linux": map[string]any{
			"cgroupsPath": "/" + c.id,
			"namespaces":  []map[string]string{{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "network"}},
			"resources":   map[string]any{"devices": []map[string]any{{"allow": true, "access": "rwm"}}},
		},
	}, "", "\t")
	if err != nil {
		h.t.Fatal(err)
	}
	WriteFile(h.t, filepath.Join(c.bundle, "config.json"), string(spec))
	h.t.Cleanup(c.remove)
	c.must("run", "--detach", "--bundle", c.bundle, c.id)
	c.findRoot()
	c.WaitTicks(3)
	return c
}

// Configure writes the container's configuration file for criu: the product's example, what
// this machine needs, and what the test adds.
//
// It turns off criu's management of control groups. Otherwise criu saves every control
// group below the root ones, including those of other tests. A restore then creates these
// again, and nothing removes them any more.
func (c *Container) Configure(more string) {
	c.host.t.Helper()
	WriteFile(c.host.t, c.configuration(), c.host.ExampleConfiguration("runc.conf")+"manage-cgroups=ignore\n"+more+"\n")
	defaults := filepath.Join(c.home(), ".criu", "default.conf")
	if err := os.MkdirAll(filepath.Dir(defaults), 0o700); err != nil {
		c.host.t.Fatal(err)
	}
	if _, err := exec.LookPath("iptables-restore"); err != nil {
		// In runc.conf, this line makes criu before 4.2 crash.
		WriteFile(c.host.t, defaults, "network-lock skip\n")
	}
}

// home returns the home directory of runc and criu. criu reads its default configuration
// there.
func (c *Container) home() string { return filepath.Join(c.bundle, "home") }

func (c *Container) configuration() string { return filepath.Join(c.bundle, "runc.conf") }

// Mount is a mount of a container.
type Mount struct {
	Destination string   `json:"destination"`
	Source      string   `json:"source"`
	Type        string   `json:"type,omitempty"`
	Options     []string `json:"options,omitempty"`
}

// Bind mounts one directory without the mounts below it: criu is told of no other mounts.
func Bind(source, destination, access string) Mount {
	return Mount{Source: source, Destination: destination, Type: "bind", Options: []string{"bind", access}}
}

// HostPrograms puts this machine's programs and libraries into a container's root.
func HostPrograms(t testing.TB, root string) []Mount {
	t.Helper()
	var mounts []Mount
	for _, dir := range []string{"/usr", "/bin", "/lib", "/lib64", "/etc"} {
		info, err := os.Lstat(dir)
		switch {
		case err != nil: // not every machine has a /lib64
		case info.Mode()&os.ModeSymlink != 0: // /lib is usr/lib
			target, err := os.Readlink(dir)
			if err == nil {
				err = os.MkdirAll(root, 0o755)
			}
			if err == nil {
				err = os.Symlink(target, filepath.Join(root, dir))
			}
			if err != nil {
				t.Fatal(err)
			}
		default:
			mounts = append(mounts, Bind(dir, dir, "ro"))
		}
	}
	return mounts
}

// deviceNodes makes a folder with the host's device nodes, without those of the GPUs that
// the container is not to see.
func (c *Container) deviceNodes(gpus []int) string {
	c.host.t.Helper()
	dir := filepath.Join(c.bundle, "dev")
	names := []string{"nvidiactl", "nvidia-uvm", "nvidia-memory"}
	for _, gpu := range gpus {
		names = append(names, fmt.Sprintf("nvidia%d", gpu))
	}
	err := os.Mkdir(dir, 0o755)
	for _, name := range names {
		var node unix.Stat_t
		if err == nil {
			err = unix.Stat(filepath.Join(c.host.Dir, "dev", name), &node)
		}
		if err == nil {
			err = unix.Mknod(filepath.Join(dir, name), node.Mode, int(node.Rdev))
		}
	}
	if err != nil {
		c.host.t.Fatal(err)
	}
	return dir
}

// Checkpoint checkpoints the container and fails the test if that does not succeed.
func (c *Container) Checkpoint(args ...string) {
	c.host.t.Helper()
	if run := c.TryCheckpoint(args...); run.Err != nil {
		c.host.t.Fatalf("runc checkpoint: %v\n%s", run.Err, run.Lines())
	}
}

// TryCheckpoint checkpoints the container into its image folder.
func (c *Container) TryCheckpoint(args ...string) CriuRun {
	c.host.t.Helper()
	return c.criuRun("dump", append(append([]string{"checkpoint", "--image-path", c.Images(), "--work-path", c.Images()}, args...), c.id)...)
}

// Restore restores the container from its image folder and fails the test if that does not
// succeed.
func (c *Container) Restore() {
	c.host.t.Helper()
	run := c.TryRestore()
	if run.Err != nil {
		c.host.t.Fatalf("runc restore: %v\n%s", run.Err, run.Lines())
	}
	c.findRoot()
}

// TryRestore restores the container from its image folder.
func (c *Container) TryRestore() CriuRun {
	c.host.t.Helper()
	return c.criuRun("restore", "restore", "--detach", "--bundle", c.bundle, "--image-path", c.Images(), "--work-path", c.Images(), c.id)
}

func (c *Container) criuRun(log string, args ...string) CriuRun {
	c.host.t.Helper()
	return c.host.run(log, c.Images(), c.command(args...))
}

// CaughtWriting reports whether the image was made while the job was writing one of its
// files. Such an image cannot be restored once the job has gone on and renamed that file.
func (c *Container) CaughtWriting() bool {
	c.host.t.Helper()
	return CaughtWriting(c.host.t, c.Images())
}

// Images is where the container's checkpoint is.
func (c *Container) Images() string { return filepath.Join(c.bundle, "images") }

// Pause freezes the container's control group, as an engine would. It tries again if runc
// gives up, as runc sometimes does on cgroup v1 when the machine is busy.
func (c *Container) Pause() {
	c.host.t.Helper()
	Eventually(c.host.t, Soon, "runc pauses the container", func() bool { return c.command("pause", c.id).Run() == nil })
}

// Resume thaws the container.
func (c *Container) Resume() {
	c.host.t.Helper()
	c.must("resume", c.id)
}

// State returns the state that runc reports for the container: running, paused, stopped.
func (c *Container) State() string {
	c.host.t.Helper()
	return c.state().Status
}

// Delete ends the container and removes its control groups.
func (c *Container) Delete() {
	c.host.t.Helper()
	c.must("delete", "--force", c.id)
	Eventually(c.host.t, Soon, "the container is gone", c.Gone)
}

type containerState struct {
	PID    int    `json:"pid"`
	Status string `json:"status"`
}

func (c *Container) state() containerState {
	c.host.t.Helper()
	var state containerState
	if err := json.Unmarshal([]byte(c.must("state", c.id)), &state); err != nil {
		c.host.t.Fatal(err)
	}
	return state
}

func (c *Container) findRoot() { c.PID = c.state().PID }

// command returns a runc command that finds the criu of the tests in its PATH.
func (c *Container) command(args ...string) *exec.Cmd {
	c.host.t.Helper()
	dir := filepath.Join(c.bundle, "bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		c.host.t.Fatal(err)
	}
	if err := os.Symlink(Criu(c.host.t), filepath.Join(dir, "criu")); err != nil && !os.IsExist(err) {
		c.host.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(c.host.t.Context(), 3*Soon)
	c.host.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, Runc(c.host.t), append([]string{"--root", filepath.Join(c.bundle, "state")}, args...)...)
	cmd.Env = append(slices.Clone(c.host.Env), "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+c.home())
	return cmd
}

// must runs runc and returns its standard output. The container inherits the null device,
// because criu could not dump a pipe of ours.
func (c *Container) must(args ...string) string {
	c.host.t.Helper()
	cmd := c.command(args...)
	if args[0] == "state" {
		out, err := cmd.Output()
		if err != nil {
			c.host.t.Fatalf("runc %s: %v%s", args[0], err, stderrOf(err))
		}
		return string(out)
	}
	log := filepath.Join(c.bundle, args[0]+".log")
	cmd.Args = append([]string{cmd.Args[0], "--log", log}, cmd.Args[1:]...)
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(log)
		c.host.t.Fatalf("runc %s: %v\n%s", args[0], err, said)
	}
	return ""
}

// remove ends everything that is left of the container. A frozen process does not die, so
// its control groups are thawed first.
func (c *Container) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), Soon)
	defer cancel()
	for _, freezer := range []proc.Freezer{
		{Dir: filepath.Join("/sys/fs/cgroup/freezer", c.id), V1: true},
		{Dir: filepath.Join("/sys/fs/cgroup", c.id)},
	} {
		if _, err := os.Stat(freezer.Dir); err != nil {
			continue
		}
		if err := freezer.Thaw(ctx); err != nil {
			c.host.t.Error(err)
		}
	}
	cmd := exec.CommandContext(ctx, Runc(c.host.t), "--root", filepath.Join(c.bundle, "state"), "delete", "--force", c.id)
	if out, err := cmd.CombinedOutput(); err != nil {
		c.host.t.Errorf("runc delete: %v\n%s", err, out)
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/" + c.id)
	for _, dir := range append(groups, filepath.Join("/sys/fs/cgroup", c.id)) {
		for ; ; time.Sleep(5 * time.Millisecond) {
			if err := os.Remove(dir); err == nil || os.IsNotExist(err) {
				break
			} else if ctx.Err() != nil {
				c.host.t.Errorf("control group of the container is left: %v", err)
				break
			}
		}
	}
}

// RefusedAsContainer fails the test unless check and dump refuse the process for its mounts.
func RefusedAsContainer(t testing.TB, host *Host, pid string) {
	t.Helper()
	for _, args := range [][]string{{"check", "--criu", Criu(t), "-t", pid}, {"dump", "-t", pid, "-D", filepath.Join(t.TempDir(), "images")}} {
		out, err := host.CucriuCommand(args...).CombinedOutput()
		if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.Contains(string(out), "cucriu jobs") {
			t.Errorf("cucriu %s: %v\n%s", args[0], err, out)
		}
	}
}
