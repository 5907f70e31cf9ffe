package testenv

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// MountCgroups gives the isolated test (and what it starts) a view of control
// groups of one version only, whichever this machine mounts: for version 1 the
// freezer and the devices controller, which are all that runc insists on, for
// version 2 the unified hierarchy.
func MountCgroups(t *testing.T, version int) {
	t.Helper()
	if !namespaces() {
		t.Fatal("this test mounts control groups, and needs a mount namespace of its own")
	}
	const dir = "/sys/fs/cgroup"
	// With all that is mounted below: mountinfo lists what is merely covered, too.
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
