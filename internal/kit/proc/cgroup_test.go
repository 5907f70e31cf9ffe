package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
)

// newGroup makes a control group below a mounted hierarchy and moves the
// process there.
func newGroup(t *testing.T, hierarchy, control string, pid int) string {
	t.Helper()
	dir := filepath.Join(hierarchy, "cucriu-test-"+strconv.Itoa(os.Getpid())+"-"+t.Name())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatalf("make a control group (needs root and a mounted hierarchy): %v", err)
	}
	t.Cleanup(func() {
		// A frozen process does not die.
		thaw := map[string]string{"freezer.state": "THAWED", "cgroup.freeze": "0"}[control]
		if err := os.WriteFile(filepath.Join(dir, control), []byte(thaw), 0); err != nil {
			t.Error(err)
		}
		for range 3000 {
			if os.Remove(dir) == nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Errorf("control group %s is left", dir)
	})
	if _, err := os.Stat(filepath.Join(dir, control)); err != nil {
		t.Fatal(err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0))
	return dir
}

// computes reports whether a process gets time on a CPU within a limit.
func computes(t *testing.T, pid int, limit time.Duration) bool {
	t.Helper()
	used := func() float64 {
		stat, err := procStat(pid)
		must(t, err)
		return stat.CPUTime()
	}
	for before, deadline := used(), time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if used() > before {
			return true
		}
	}
	return false
}

func testFreezer(t *testing.T, hierarchy, control string, v1 bool) {
	p := open(t, start(t, "sh", "-c", "while :; do :; done").Process.Pid)
	dir := newGroup(t, hierarchy, control, p.PID)
	t.Cleanup(func() { _ = p.Signal(9) })
	freezer := Freezer{dir, v1}
	hierarchies, err := ReadHierarchies()
	must(t, err)
	if freezers, err := hierarchies.FreezersOf(p.PID); err != nil || !slices.Contains(freezers, freezer) {
		t.Fatalf("freezers of the process: %+v (%v), want %+v", freezers, err, freezer)
	}
	if frozen, err := FrozenBy(p.PID); err != nil || len(frozen) != 0 {
		t.Fatalf("frozen by %v %v before anything was frozen", frozen, err)
	}
	must(t, freezer.Freeze(t.Context()))
	if frozen, err := FrozenBy(p.PID); err != nil || len(frozen) != 1 || frozen[0] != freezer {
		t.Fatalf("frozen by %v %v, want %v", frozen, err, freezer)
	}
	if computes(t, p.PID, 500*time.Millisecond) {
		t.Error("a frozen process computes")
	}
	must(t, freezer.Thaw(t.Context()))
	if !computes(t, p.PID, time.Minute) {
		t.Error("a thawed process does not compute")
	}
}

func TestFreezerV1(t *testing.T) {
	if _, err := os.Stat("/sys/fs/cgroup/freezer/cgroup.procs"); err != nil {
		t.Skip("this kernel mounts no v1 freezer hierarchy")
	}
	testFreezer(t, "/sys/fs/cgroup/freezer", "freezer.state", true)
}

func TestFreezerV2(t *testing.T) {
	hierarchy := ""
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.controllers")); err == nil {
			hierarchy = dir
		}
	}
	if hierarchy == "" {
		t.Skip("this machine mounts no cgroup v2 hierarchy")
	}
	testFreezer(t, hierarchy, "cgroup.freeze", false)
}

// On a host with many mounts, the mounts are read once for a tree of many processes.
func TestMountsAreReadOnceForManyProcesses(t *testing.T) {
	files := map[string]string{"proc/self/mountinfo": v2Mount}
	for pid := 1; pid <= 3; pid++ {
		files[fmt.Sprintf("proc/%d/cgroup", pid)] = fmt.Sprintf("0::/job/%d\n", pid)
		dir := fmt.Sprintf("sys/fs/cgroup/job/%d/", pid)
		files[dir+"cgroup.freeze"], files[dir+"memory.max"], files[dir+"memory.current"], files[dir+"memory.stat"] = "1\n", "4096\n", "1\n", "active_file 0\n"
	}
	system := systemOf(t, files)
	hierarchies, err := system.Hierarchies()
	must(t, err)
	must(t, os.WriteFile(system.path("proc/self/mountinfo"), []byte("not read a second time"), 0o600))
	for pid := 1; pid <= 3; pid++ {
		dir := system.path(fmt.Sprintf("sys/fs/cgroup/job/%d", pid))
		if frozen, err := hierarchies.FrozenBy(pid); err != nil || len(frozen) != 1 || frozen[0] != (Freezer{Dir: dir}) {
			t.Errorf("process %d: frozen by %v (%v), want %s", pid, frozen, err, dir)
		}
		if groups, err := hierarchies.MemoryGroups(pid); err != nil || len(groups) != 1 || groups[0].Dir != dir || groups[0].Limit != 4096 {
			t.Errorf("process %d: limited by %+v (%v), want %s", pid, groups, err, dir)
		}
	}
}
