package testenv

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"cucriu/internal/testenv/quick"
	"cucriu/internal/testenv/reaper"
)

// The roles in which a test binary starts itself again.
const (
	roleVariable = "CUCRIU_TEST_ROLE"
	roleInit     = "init"
	roleTest     = "test"
)

// Main is the TestMain of packages whose tests call [Isolated]. Three of these run at once, unless
// sideBySide or go test's -parallel says it: they wait more than they compute, and `make test` runs two
// packages at once. On a real machine they share its GPUs, and it is left to go test.
func Main(m *testing.M, sideBySide ...int) {
	if os.Getenv(roleVariable) == roleInit {
		os.Exit(runInit())
	}
	if !RealDriver() {
		if err := flag.Set("test.parallel", strconv.Itoa(append(sideBySide, 3)[0])); err != nil {
			panic(err)
		}
	}
	if err := quick.Choose(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// Parallel lets a test whose subtests are isolated wait for them beside other tests.
func Parallel(t *testing.T) {
	t.Helper()
	if os.Getenv(roleVariable) != roleTest && !RealDriver() {
		t.Parallel()
	}
}

// Simulated is [Isolated] for a test that needs what only the simulated driver has: several hosts
// on one machine, and faults on request.
func Simulated(t *testing.T, test func(*testing.T)) {
	t.Helper()
	if RealDriver() {
		t.Skip("needs the simulated driver")
	}
	Isolated(t, test)
}

// Isolated runs a test in a pid and mount namespace of its own, below an init that reaps. A
// restore needs the pids of the dump to be free, and a zombie that nobody reaps keeps its
// pid. Isolated needs root.
func Isolated(t *testing.T, test func(*testing.T)) {
	t.Helper()
	IsolatedFor(t, 6*Soon, test)
}

// IsolatedFor is [Isolated] with a time limit of its own.
func IsolatedFor(t *testing.T, limit time.Duration, test func(*testing.T)) {
	t.Helper()
	if os.Getenv(roleVariable) == roleTest {
		// The test's folders are removed after this.
		t.TempDir()
		t.Cleanup(killOthers)
		test(t)
		return
	}
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Fatal("this test runs real criu and needs root")
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run="+quick.Exactly(t.Name()), "-test.v", "-test.count=1", "-test.timeout="+limit.String())
	cmd.Env = append(os.Environ(), roleVariable+"="+roleInit)
	cmd.SysProcAttr = reaper.SysProcAttr(namespaces())
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatalf("the isolated test failed: %v", err)
	}
	if strings.Contains(string(out), "--- SKIP: "+t.Name()) {
		t.Skip("the isolated test says why")
	}
	if !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("the isolated test %s did not run", t.Name())
	}
}

// WithoutParts unmounts, for an isolated test, what this machine has mounted of file systems that are not mounted
// whole: network namespaces that ip netns, Docker and CNI bind below /run, or files of a container. criu dumps no
// mount namespace that has one.
func WithoutParts(t *testing.T) {
	t.Helper()
	if !namespaces() {
		return
	}
	mounts, err := procfs.GetMounts()
	if err != nil {
		t.Fatal(err)
	}
	whole := make(map[string]bool) // by the device
	for _, m := range mounts {
		whole[m.MajorMinorVer] = whole[m.MajorMinorVer] || m.Root == "/"
	}
	for _, m := range slices.Backward(mounts) {
		if !whole[m.MajorMinorVer] && m.MountPoint != "/" {
			if err := unix.Unmount(m.MountPoint, unix.MNT_DETACH); err != nil {
				t.Fatalf("unmount %s: %v", m.MountPoint, err)
			}
		}
	}
}

func namespaces() bool { return os.Getenv("CUCRIU_TEST_NAMESPACES") != "off" }

// killOthers ends what an isolated test has left running, which would go on to write into the
// test's folders while they are removed.
func killOthers() {
	if !namespaces() {
		return // the others are the machine's
	}
	const all = -1 // but the init and the caller
	for {
		_ = unix.Kill(all, unix.SIGKILL)
		others := slices.DeleteFunc(PIDs(), func(pid int) bool { return pid == 1 || pid == os.Getpid() })
		if len(NotEnding(others)) == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func runInit() int {
	os.Setenv(roleVariable, roleTest)
	status, err := reaper.Run(namespaces())
	if err != nil {
		fmt.Fprintln(os.Stderr, "test init:", err)
		return 125
	}
	return status
}
