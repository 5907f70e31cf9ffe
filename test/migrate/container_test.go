package migrate

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

// containerDir is the bundle of the container, on both hosts.
const containerDir = "/tmp/train"

// containers is two hosts between which a container is moved, with the lines of docs/containers.md.
type containers struct {
	*hosts.Pair
	t     *testing.T
	lines map[string][]string // of each section
	work  *hosts.Job
	gpu   map[*hosts.Host]int // which it gives to the container
}

func newContainers(t *testing.T) *containers {
	t.Helper()
	testenv.MountCgroups(t, 2)
	group := "/cucriu-" + strings.ToLower(rand.Text())
	t.Cleanup(func() {
		testenv.Eventually(t, testenv.Soon, "the control group is removed", func() bool {
			err := os.Remove("/sys/fs/cgroup" + group)
			return err == nil || errors.Is(err, os.ErrNotExist)
		})
	})
	options := hosts.HostOptions{GPUs: 2, Simulator: []string{"--mib-per-gpu", "64"}}
	c := &containers{t: t, Pair: hosts.New(t, hosts.Options{A: options, B: options}), lines: linesOfPage(t)}
	c.gpu = map[*hosts.Host]int{c.A: 0, c.B: 1}
	bin := t.TempDir()
	for name, target := range map[string]string{"criu": testenv.Criu(t), "runc": testenv.Runc(t)} {
		if err := os.Symlink(target, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	var variable string
	c.work, variable = c.A.ForeignJob(containerDir + "/rootfs/job")
	for _, h := range c.Hosts() {
		h.Setenv("PATH", strings.Join([]string{bin, filepath.Dir(h.HookBin), os.Getenv("CUCRIU_TEST_SSH"), os.Getenv("PATH")}, ":"))
		testenv.WriteFile(t, h.Path("/run/runc.conf"), h.ExampleConfiguration("runc.conf")+"manage-cgroups=ignore\n")
		h.Run("sh", "-c", "mkdir -p ~/.criu && echo network-lock skip > ~/.criu/default.conf")
	}
	c.bundle(variable, group)
	return c
}

// linesOfPage reads the commands of each section.
func linesOfPage(t *testing.T) map[string][]string {
	t.Helper()
	page, err := os.ReadFile(testenv.Artefact(t, "git checkout docs", "docs", "containers.md"))
	if err != nil {
		t.Fatal(err)
	}
	lines := make(map[string][]string)
	section := ""
	for _, found := range regexp.MustCompile("(?ms)^###? ([^\n]*)$|^```sh\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		if found[1] != "" {
			section = found[1]
		} else {
			lines[section] = append(lines[section], found[2])
		}
	}
	return lines
}

// nodes are the device nodes that a host has for the container.
func (c *containers) nodes(h *hosts.Host) string {
	return strings.ReplaceAll(fmt.Sprintf("@nvidiactl @nvidia-uvm @nvidia-memory @nvidia%d", c.gpu[h]), "@", "/run/nvidia/dev/")
}

// bundle makes the bundle on host a.
func (c *containers) bundle(variable, group string) {
	t := c.t
	t.Helper()
	rootfs := c.A.Path(containerDir + "/rootfs")
	c.A.Run("sh", "-c", "mkdir -p "+containerDir+"/rootfs/job "+containerDir+"/rootfs/dev && cp -a "+c.nodes(c.A)+" "+containerDir+"/rootfs/dev")
	work := testenv.Artefact(t, "make workload", "build", "workload", "cudawork")
	driver := filepath.Dir(testenv.Artefact(t, "make sim", "build", "cudasim", "libcuda.so.1"))
	config, err := json.Marshal(map[string]any{
		"ociVersion": "1.0.2",
		"process": map[string]any{
			"cwd": "/", "user": map[string]int{"uid": 0, "gid": 0}, "env": []string{"CUDASIM_ROOT=/run/nvidia", "LD_LIBRARY_PATH=" + driver, variable},
			"args": []string{"/cudawork", "--dir", "/job", "--mib", "8"},
		},
		"root": map[string]any{"path": "rootfs"},
		"mounts": append(testenv.HostPrograms(t, rootfs),
			testenv.Mount{Source: "proc", Destination: "/proc", Type: "proc"},
			testenv.Mount{Source: "devpts", Destination: "/dev/pts", Type: "devpts", Options: []string{"newinstance", "ptmxmode=0666"}},
			testenv.Mount{Source: "shm", Destination: "/dev/shm", Type: "tmpfs"},
			testenv.Bind(work, "/cudawork", "ro"), testenv.Bind(driver, driver, "ro"), testenv.Bind("/run/nvidia", "/run/nvidia", "rw"),
			testenv.Bind(containerDir+"/rootfs/dev", "/run/nvidia/dev", "rw"), // where the simulated driver looks
		),
		"annotations": map[string]string{"org.criu.config": "/run/runc.conf"},
		"linux": map[string]any{
			"cgroupsPath": group,
			"namespaces":  []map[string]string{{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}},
			"resources":   map[string]any{"devices": []map[string]any{{"allow": true, "access": "rwm"}}},
		},
	})
	if err == nil {
		err = os.WriteFile(c.A.Path(containerDir+"/config.json"), config, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// typing is the shell in which somebody moves the container from a host to the other.
type typing struct {
	c        *containers
	from, to *hosts.Host
	set      string
}

func (c *containers) typing(from, to *hosts.Host) *typing {
	return &typing{c, from, to, fmt.Sprintf("set -o pipefail; id=train dir=%s to=%s image=checkpoint-%d nodes=%q\n", containerDir, to.Name, time.Now().UnixNano(), c.nodes(to))}
}

// run runs the lines of a section, and fails the test unless the last of them ends with this
// status and the others succeed.
func (m *typing) run(section string, n, status int) string {
	m.c.t.Helper()
	all := m.c.lines[section]
	if len(all) <= n {
		m.c.t.Fatalf("the page has no lines %d in %q; it has %v", n, section, slices.Sorted(maps.Keys(m.c.lines)))
	}
	begun := time.Now()
	shell := "set -e\n"
	if section == pageRestore {
		shell = "" // what comes last counts
	}
	out, err := m.from.Try("bash", "-c", shell+m.set+all[n])
	got := 0
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		m.c.t.Fatal(err)
	}
	m.c.t.Logf("%s, lines %d, on host %s: %d after %v\n%s", section, n, m.from.Name, got, time.Since(begun).Round(time.Millisecond), out)
	if got != status {
		logs, _ := m.from.Try("sh", "-c", "grep -hE 'Error|cucriu' "+containerDir+"/checkpoint-*/*.log; cucriu status")
		m.c.t.Log(logs)
		m.c.t.Fatalf("%s, lines %d: status %d, want %d\n%s", section, n, got, status, out)
	}
	return out
}

const (
	pageCheck      = "1. Check, while it runs"
	pageCheckpoint = "2. Checkpoint"
	pageSend       = "3. Send and check"
	pageRestore    = "4. Restore there"
	pageClean      = "5. Clean up"
	pageBack       = "If it fails there"
)

// is fails the test unless the container is on this host, on its GPU, with all that it had.
func (c *containers) is(on *hosts.Host) {
	c.t.Helper()
	c.work.Is(on)
	if s, err := c.work.Status(on, 0); err != nil || s.GPUs[0].UUID != on.UUIDs()[c.gpu[on]] {
		c.t.Fatalf("%v: the container is on %+v, not on GPU %d of host %s", err, s.GPUs, c.gpu[on], on.Name)
	}
}

// start starts the container on host a.
func (c *containers) start() {
	c.t.Helper()
	c.A.Run("sh", "-c", "runc run --detach --bundle "+containerDir+" train </dev/null >/dev/null 2>&1")
	c.work.WaitTicks(c.A, 3)
	c.is(c.A)
}

// goesOn fails the test unless the container is on a host, and at least where it was.
func (c *containers) goesOn(on *hosts.Host, before int) {
	c.t.Helper()
	c.is(on)
	if after := c.work.Tick(on); after < before {
		c.t.Errorf("the job was at %d, and goes on from %d", before, after)
	}
}

// TestAContainerMovesAsThePageSays types what docs/containers.md tells people to type.
func TestAContainerMovesAsThePageSays(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		c := newContainers(t)
		c.start()
		watch := c.work.Watch()
		there := c.typing(c.A, c.B)
		before := c.work.Tick(c.A)
		there.run(pageCheck, 0, 0)
		there.run(pageCheck, 1, 0)
		for _, m := range []*typing{there, c.typing(c.B, c.A)} {
			m.run(pageCheckpoint, 0, 0)
			m.run(pageSend, 0, 0)
			m.run(pageRestore, 0, 0)
			c.goesOn(m.to, before)
			before = c.work.Tick(m.to)
			m.run(pageClean, 0, 0)
			for _, h := range c.Hosts() {
				if left, _ := filepath.Glob(h.Path(containerDir + "/checkpoint-*")); len(left) > 0 {
					t.Errorf("left on host %s: %v", h.Name, left)
				}
			}
		}
		watch.Stop()
	})
}

// TestAContainerThatCannotGoThereGoesOnHere, wherever that is found.
func TestAContainerThatCannotGoThereGoesOnHere(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		c := newContainers(t)
		c.start()
		watch := c.work.Watch()
		out, err := c.A.Try("bash", "-c", `cucriu migrate -t "$(runc state train | jq .pid)" --to b`)
		if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.Contains(out, "of its own, as in a container") {
			t.Errorf("cucriu migrate does not refuse a container: %v\n%s", err, out)
		}

		// What did not arrive whole gets no name there.
		m := c.typing(c.A, c.B)
		before := c.work.Tick(c.A)
		c.B.SmallDisk(containerDir, "4m")
		m.run(pageCheck, 1, 0)
		m.run(pageCheckpoint, 0, 0)
		m.run(pageSend, 0, 2)
		m.run(pageRestore, 0, 3)
		m.run(pageBack, 0, 0)
		c.goesOn(c.A, before)
		c.B.Run("umount", containerDir)

		m = c.typing(c.A, c.B)
		before = c.work.Tick(c.A)
		version := c.B.Path("/run/nvidia/proc/driver/nvidia/version")
		text, err := os.ReadFile(version)
		if err != nil {
			t.Fatal(err)
		}
		testenv.WriteFile(t, version, strings.ReplaceAll(string(text), "580.159.04", "580.95.05"))
		m.run(pageCheck, 0, 3)
		m.run(pageCheck, 1, 0)
		m.run(pageCheckpoint, 0, 0)
		if out := m.run(pageSend, 0, 3); !strings.Contains(out, "driver-version") {
			t.Errorf("it is not said why:\n%s", out)
		}
		m.run(pageBack, 0, 0)
		c.goesOn(c.A, before)
		testenv.WriteFile(t, version, string(text))

		// Only the GPU that the container sees there is full, which its restore finds.
		m = c.typing(c.A, c.B)
		before = c.work.Tick(c.A)
		m.run(pageCheckpoint, 0, 0)
		m.run(pageSend, 0, 0)
		hog := c.B.Start(1, "--gpus", "1", "--mib", "58")
		if out := m.run(pageRestore, 0, 1); !strings.Contains(out, "left nothing running") {
			t.Errorf("it is not said what became of it:\n%s", out)
		}
		m.run(pageBack, 0, 0)
		c.goesOn(c.A, before)
		hog.Is(c.B)
		watch.Stop()
	})
}
