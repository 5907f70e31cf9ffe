package conformance

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// freezer is a control group that can freeze, of cgroup v2 or of the v1 controller.
type freezer struct{ dir string }

// freezerDir returns where a freezer of that name is or would be, or "" if this machine has
// none.
func freezerDir(name string) string {
	mounts, _ := os.ReadFile("/proc/self/mounts")
	v1 := ""
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) < 4:
		case fields[2] == "cgroup2":
			return filepath.Join(fields[1], name)
		case fields[2] == "cgroup" && strings.Contains(","+fields[3]+",", ",freezer,"):
			v1 = filepath.Join(fields[1], name)
		}
	}
	return v1
}

func newFreezer(name string) (*freezer, error) {
	f := &freezer{dir: freezerDir(name)}
	if f.dir == "" {
		return nil, notHere("no control groups are mounted")
	}
	if err := os.Mkdir(f.dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, notHere("no control group can be made: " + err.Error())
	}
	if file, _, _ := f.control(); file == "" {
		f.remove()
		return nil, notHere("the control group " + f.dir + " cannot freeze")
	}
	return f, nil
}

// control returns the file that freezes the group, and what to write into it.
func (f *freezer) control() (file, frozen, thawed string) {
	file = filepath.Join(f.dir, "cgroup.freeze")
	if _, err := os.Stat(file); err == nil {
		return file, "1", "0"
	}
	file = filepath.Join(f.dir, "freezer.state")
	if _, err := os.Stat(file); err == nil {
		return file, "FROZEN", "THAWED"
	}
	return "", "", ""
}

func (f *freezer) set(frozen bool) error {
	file, on, off := f.control()
	value := off
	if frozen {
		value = on
	}
	if err := os.WriteFile(file, []byte(value), 0); err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); f.isFrozen() != frozen; time.Sleep(time.Millisecond) { // tasks freeze when they are next interrupted
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: frozen is not %v within %v", f.dir, frozen, patience)
		}
	}
	return nil
}

// isFrozen reports whether all tasks of the group are frozen.
func (f *freezer) isFrozen() bool {
	if events, err := os.ReadFile(filepath.Join(f.dir, "cgroup.events")); err == nil && strings.Contains(string(events), "frozen") {
		return strings.Contains(string(events), "frozen 1")
	}
	state, _ := os.ReadFile(filepath.Join(f.dir, "freezer.state"))
	return strings.TrimSpace(string(state)) == "FROZEN"
}

func (f *freezer) remove() {
	for range 1500 {
		if os.Remove(f.dir) == nil {
			return
		}
		time.Sleep(hurriedGap) // a dying process is still in it
	}
}
