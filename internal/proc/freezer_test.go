package proc

import (
	"os"
	"path/filepath"
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
		for range 100 {
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
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		t.Fatal(err)
	}
	return dir
}

// computes reports whether a process gets time on a CPU.
func computes(t *testing.T, pid int) bool {
	t.Helper()
	used := func() float64 {
		stat, err := procStat(pid)
		if err != nil {
			t.Fatal(err)
		}
		return stat.CPUTime()
	}
	for before, deadline := used(), time.Now().Add(500*time.Millisecond); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
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
	freezers, err := FreezersOf(p.PID)
	if err != nil {
		t.Fatal(err)
	}
	var freezer *Freezer
	for i := range freezers {
		if freezers[i].Dir == dir {
			freezer = &freezers[i]
		}
	}
	if freezer == nil || freezer.V1 != v1 {
		t.Fatalf("freezers of the process: %+v, want %s", freezers, dir)
	}
	if frozen, err := FrozenBy(p.PID); err != nil || len(frozen) != 0 {
		t.Fatalf("frozen by %v %v before anything was frozen", frozen, err)
	}
	if err := freezer.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if frozen, err := FrozenBy(p.PID); err != nil || len(frozen) != 1 || frozen[0] != *freezer {
		t.Fatalf("frozen by %v %v, want %v", frozen, err, freezer)
	}
	if computes(t, p.PID) {
		t.Error("a frozen process computes")
	}
	if err := freezer.Thaw(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !computes(t, p.PID) {
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
