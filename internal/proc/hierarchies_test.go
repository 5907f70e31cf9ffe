package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// On a host with many mounts, the mounts are read once for a tree of many processes.
func TestMountsAreReadOnceForManyProcesses(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n")
	for pid := range 3 {
		write(fmt.Sprintf("proc/%d/cgroup", pid+1), fmt.Sprintf("0::/job/%d\n", pid+1))
		write(fmt.Sprintf("sys/fs/cgroup/job/%d/cgroup.freeze", pid+1), "1\n")
		write(fmt.Sprintf("sys/fs/cgroup/job/%d/memory.max", pid+1), "4096\n")
		write(fmt.Sprintf("sys/fs/cgroup/job/%d/memory.current", pid+1), "1\n")
		write(fmt.Sprintf("sys/fs/cgroup/job/%d/memory.stat", pid+1), "active_file 0\n")
	}
	hierarchies, err := System{Root: root}.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	write("proc/self/mountinfo", "not read a second time")
	for pid := 1; pid <= 3; pid++ {
		dir := filepath.Join(root, fmt.Sprintf("sys/fs/cgroup/job/%d", pid))
		if frozen, err := hierarchies.FrozenBy(pid); err != nil || len(frozen) != 1 || frozen[0] != (Freezer{Dir: dir}) {
			t.Errorf("process %d: frozen by %v (%v), want %s", pid, frozen, err, dir)
		}
		if groups, err := hierarchies.MemoryGroups(pid); err != nil || len(groups) != 1 || groups[0].Dir != dir || groups[0].Limit != 4096 {
			t.Errorf("process %d: limited by %+v (%v), want %s", pid, groups, err, dir)
		}
	}
}
