package testenv

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The two roles in which a test binary starts itself again.
const (
	roleVariable = "CUCRIU_TEST_ROLE"
	roleInit     = "init"
	roleTest     = "test"
)

// Main is the TestMain of packages whose tests call [Isolated].
func Main(m *testing.M) {
	if os.Getenv(roleVariable) == roleInit {
		os.Exit(runInit())
	}
	os.Exit(m.Run())
}

// Isolated runs a test in a pid and mount namespace of its own, below an init
// that reaps: a restore needs the pids of the dump to be free, and a zombie
// that nobody reaps holds one. Needs root.
func Isolated(t *testing.T, test func(*testing.T)) {
	t.Helper()
	if os.Getenv(roleVariable) == roleTest {
		test(t)
		return
	}
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Fatal("this test runs real criu and needs root")
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.v", "-test.count=1", "-test.timeout=3m")
	cmd.Env = append(os.Environ(), roleVariable+"="+roleInit)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if namespaces() {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWPID | unix.CLONE_NEWNS
	}
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

func namespaces() bool { return os.Getenv("CUCRIU_TEST_NAMESPACES") != "off" }

// runInit is the first process of the namespaces (or, without them, a
// subreaper): it starts the test and reaps every orphan.
func runInit() int {
	if err := prepareInit(); err != nil {
		fmt.Fprintln(os.Stderr, "test init:", err)
		return 125
	}
	// Not os/exec: its Wait would compete with the reaping below.
	os.Setenv(roleVariable, roleTest)
	pid, err := syscall.ForkExec("/proc/self/exe", os.Args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		fmt.Fprintln(os.Stderr, "test init:", err)
		return 125
	}
	for {
		var status unix.WaitStatus
		ended, err := unix.Wait4(-1, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "test init:", err)
			return 125
		}
		if ended == pid && (status.Exited() || status.Signaled()) {
			if status.Signaled() {
				return 128 + int(status.Signal())
			}
			return status.ExitStatus()
		}
	}
}

func prepareInit() error {
	// What the caller of the tests left open belongs to no mount in here, and
	// criu could not dump a job that inherited it.
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close inherited descriptors: %w", err)
	}
	if !namespaces() {
		return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}
