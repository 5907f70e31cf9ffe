package testenv

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// MountCgroups gives the isolated test and everything that it starts a view of control
// groups of one version only, whatever this machine mounts. For version 1 it mounts the
// freezer and the devices controller, the only ones that runc requires. For version 2 it
// mounts the unified hierarchy.
func MountCgroups(t *testing.T, version int) {
	t.Helper()
	if !namespaces() {
		t.Fatal("this test mounts control groups, and needs a mount namespace of its own")
	}
	const dir = "/sys/fs/cgroup"
	// Together with all mounts below it: mountinfo also lists mounts that are only covered.
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		t.Fatalf("unmount %s: %v", dir, err)
	}
	if version == 2 {
		if err := unix.Mount("cgroup2", dir, "cgroup2", 0, ""); err != nil {
			t.Fatalf("mount cgroup v2: %v", err)
		}
		return
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
		t.Fatal(err)
	}
	for _, controller := range []string{"freezer", "devices"} {
		at := filepath.Join(dir, controller)
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		err := unix.Mount("cgroup", at, "cgroup", 0, controller)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) {
			t.Skipf("this kernel has no cgroup v1 %s controller: %v", controller, err)
		}
		if err != nil {
			t.Fatalf("mount the cgroup v1 %s controller: %v", controller, err)
		}
	}
}

// MemoryGroup makes a memory control group and returns the name of the file in it that holds its
// limit. What is in the group must have ended when the test has. MemoryGroup returns "" where no
// group can be made.
func MemoryGroup(t *testing.T) (dir, limitFile string) {
	t.Helper()
	hierarchy, limitFile := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if !Exists(filepath.Join(hierarchy, limitFile)) {
		hierarchy, limitFile = "/sys/fs/cgroup", "memory.max"
		controllers, err := os.ReadFile(filepath.Join(hierarchy, "cgroup.subtree_control"))
		if err != nil || !strings.Contains(string(controllers), "memory") {
			return "", ""
		}
	}
	dir, err := os.MkdirTemp(hierarchy, "cucriu-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		Eventually(t, Soon, "the group can be removed", func() bool {
			err := os.Remove(dir)
			return err == nil || os.IsNotExist(err)
		})
	})
	return dir, limitFile
}
