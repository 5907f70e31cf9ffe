package pstree

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// whole is a pstree.img as criu writes it: process 7 with the threads 7 and 8.
var whole = []byte{
	0x19, 0x43, 0x56, 0x54, 0x30, 0x30, 0x27, 0x50, // magic numbers
	0x0c, 0, 0, 0, // size
	0x08, 7, 0x10, 0, 0x18, 7, 0x20, 7, 0x28, 7, 0x28, 8,
}

func readTasks(t testing.TB, data []byte) ([]Task, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pstree.img"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	tree, err := Read(dir)
	return tree.Tasks, err
}

func TestReadTasks(t *testing.T) {
	tasks, err := readTasks(t, whole)
	if err == nil {
		t.Error("there is no inventory.img, and no error")
	}
	if len(tasks) != 1 || tasks[0].PID != 7 || tasks[0].PGID != 7 || tasks[0].SID != 7 || !slices.Equal(tasks[0].Threads, []int{7, 8}) {
		t.Errorf("read %+v", tasks)
	}
	for cut := range len(whole) {
		if tasks, err := readTasks(t, whole[:cut]); err == nil || len(tasks) > 0 {
			t.Errorf("cut off after %d bytes: %+v %v", cut, tasks, err)
		}
	}
}

// FuzzRead: whatever the file holds, reading it ends, and neither panics nor needs more
// memory than the file has.
func FuzzRead(f *testing.F) {
	f.Add(whole)
	f.Add([]byte{0x19, 0x43, 0x56, 0x54, 0, 0, 0, 0, 2, 0, 0, 0, 0x2a, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		if tasks, _ := readTasks(t, data); len(tasks) > len(data) {
			t.Errorf("%d tasks in %d bytes", len(tasks), len(data))
		}
	})
}
