package hosts

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// The directories that each host has for itself, and where its GPUs are.
const (
	runDir  = "/run"
	tmpDir  = "/tmp"
	gpuRoot = "/run/nvidia"
)

// Host is one of the two hosts. Its commands run on it, whatever of [testenv.Host] starts
// them.
type Host struct {
	*testenv.Host
	Name  string
	Addr  netip.Addr // of the link
	Addr6 netip.Addr

	pair    *Pair
	other   *Host
	network *network
	dir     string // with what only this host has
	home    string // of root, on the host
	init    *exec.Cmd
	first   int // pid
	hide    []string
	clock   time.Duration
}

// newHost makes what a host has before it is booted.
func (p *Pair) newHost(name string, options HostOptions, number int) *Host {
	t := p.t
	t.Helper()
	h := &Host{
		Host: testenv.NewHost(t, options.gpus(), options.Simulator...), Name: name, pair: p, hide: options.hidden(t), clock: options.Clock,
		Addr: netip.AddrFrom4([4]byte{10, 77, 0, byte(number)}), Addr6: netip.MustParseAddr(fmt.Sprintf("fd77::%d", number)),
		dir: filepath.Join(t.TempDir(), name),
		// The hosts count their pids from different numbers, so a job finds its own free on
		// the other host.
		first: 1 + 14000*(number-1) + 1000,
	}
	h.Enter = h.enter
	h.directories("tmp", "home", "etc")
	if err := os.Chmod(h.path("tmp"), 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if err := copyLinks(tmpDir, h.path("tmp")); err != nil {
		t.Fatal(err)
	}
	h.RunDir = h.path("run/cucriu")
	return h
}

// environment sets what differs from the machine's. It comes last, so that it counts.
func (h *Host) environment() {
	path := []string{filepath.Dir(h.HookBin)}
	if dir := os.Getenv(sshVariable); dir != "" {
		path = append(path, dir)
	}
	h.Setenv("PATH", strings.Join(append(path, os.Getenv("PATH"), "/usr/sbin", "/sbin"), ":"))
	h.Setenv("HOME", h.home)
	h.Setenv("TMPDIR", tmpDir)
	h.Setenv("CUCRIU_RUN_DIR", "/run/cucriu")
	if h.Dir != "" {
		h.Setenv("CUDASIM_ROOT", gpuRoot)
		h.Setenv("CUCRIU_DRIVER_ROOT", gpuRoot)
	}
}

func (h *Host) directories(names ...string) {
	h.pair.t.Helper()
	for _, name := range names {
		if err := os.MkdirAll(h.path(name), 0o755); err != nil {
			h.pair.t.Fatal(err)
		}
	}
}

// boot starts the first process of the host, and waits until its file system is complete.
func (h *Host) boot() {
	t := h.pair.t
	t.Helper()
	if err := os.RemoveAll(h.path("run")); err != nil {
		t.Fatal(err)
	}
	h.directories("run/sshd", "run/nvidia", "run/cucriu")
	h.file("etc/boot_id", newUUID()+"\n")
	s := spec{
		Name: h.Name, FirstPID: h.first, Keep: h.pair.kept(), Hide: h.hide, Clock: h.clock,
		Binds: []bind{{h.path("run"), runDir}, {h.path("tmp"), tmpDir}, {h.path("home"), h.home}},
	}
	if h.Dir != "" {
		s.Binds = append(s.Binds, bind{h.Dir, gpuRoot})
	}
	for _, file := range []string{"passwd", "shadow", "hosts", "hostname", "machine-id"} {
		s.Binds = append(s.Binds, bind{h.path("etc", file), "/etc/" + file})
	}
	s.MachineID = h.path("etc/product_uuid")
	if !h.pair.options.OneBootID {
		s.BootID = h.path("etc/boot_id")
	}
	variable, err := s.variable()
	if err != nil {
		t.Fatal(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	h.init = exec.Command("/proc/self/exe")
	h.init.Env = append(os.Environ(), roleVariable+"="+roleInit, variable)
	h.init.ExtraFiles = []*os.File{write}
	h.init.Dir = "/"
	h.init.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: unix.SIGKILL, Setsid: true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWPID,
	}
	err = h.network.do(h.init.Start)
	write.Close()
	if err != nil {
		t.Fatalf("host %s: %v", h.Name, err)
	}
	if failure, err := io.ReadAll(read); err != nil || len(failure) > 0 {
		t.Fatalf("host %s: %s %v", h.Name, failure, err)
	}
}

// path returns where the test finds a file of the host's own.
func (h *Host) path(elements ...string) string {
	return filepath.Join(append([]string{h.dir}, elements...)...)
}

// Path returns where the test finds a file of the host.
func (h *Host) Path(onHost string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", h.init.Process.Pid), onHost)
}

// enter makes a command line run on the host.
func (h *Host) enter(name string, args []string) (string, []string) {
	enter := []string{"--target", strconv.Itoa(h.init.Process.Pid), "--mount", "--uts", "--ipc", "--net", "--pid"}
	if h.clock != 0 {
		enter = append(enter, fmt.Sprintf("--time=/proc/%d/ns/time_for_children", h.init.Process.Pid))
	}
	return "nsenter", slices.Concat(enter, []string{"--", name}, args)
}

// Command returns a command that runs on the host, in its root directory. The process that
// it starts is nsenter, whose child is the command; both are killed when ctx ends.
func (h *Host) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	name, args = h.enter(name, args)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = h.Env
	cmd.Cancel = func() error {
		children, _ := proc.Children(cmd.Process.Pid)
		for _, pid := range children {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		return cmd.Process.Kill()
	}
	return cmd
}

// Run runs a command on the host and returns what it printed. It fails the test if the
// command does.
func (h *Host) Run(name string, args ...string) string {
	h.pair.t.Helper()
	out, err := h.Try(name, args...)
	if err != nil {
		h.pair.t.Fatalf("on host %s, %s %v: %v\n%s", h.Name, name, args, err, out)
	}
	return out
}

// Try runs a command on the host and returns what it printed.
func (h *Host) Try(name string, args ...string) (string, error) {
	out, err := h.Command(h.pair.t.Context(), name, args...).CombinedOutput()
	return string(out), err
}

// Setenv sets a variable for everything that is started on the host from now on, also by
// ssh.
func (h *Host) Setenv(name, value string) {
	h.Host.Setenv(name, value)
	h.writeEnvironment()
}

// UseFailpoint makes cucriu on this host go wrong at a failpoint.
func (h *Host) UseFailpoint(point string) {
	h.pair.t.Helper()
	h.Host.UseFailpoint(point)
	h.environment()
	h.writeEnvironment()
}

// end kills everything on the host.
func (h *Host) end() {
	if h.init == nil || h.init.Process == nil {
		return
	}
	_ = h.init.Process.Kill() // and with it all of its pid namespace
	_ = h.init.Wait()
	for deadline := time.Now().Add(testenv.Soon); ; time.Sleep(time.Millisecond) {
		left := h.processes()
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			h.pair.t.Errorf("%d processes of host %s do not end", len(left), h.Name)
			return
		}
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}
