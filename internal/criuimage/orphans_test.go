package criuimage

import "testing"

// TestOrphansMoved: a child of the root in a session of somebody else goes into the root's, with those below it
// that share its session; whoever leads a session, and who is in one whose leader is above it, stays as it is.
func TestOrphansMoved(t *testing.T) {
	tasks := []Task{
		{PID: 100, PPID: 1, PGID: 100, SID: 100},
		{PID: 101, PPID: 100, PGID: 101, SID: 101}, // the command
		{PID: 102, PPID: 101, PGID: 101, SID: 101}, // its child
		{PID: 110, PPID: 100, PGID: 101, SID: 101}, // (train &)
		{PID: 111, PPID: 110, PGID: 101, SID: 101}, // a worker
		{PID: 113, PPID: 112, PGID: 112, SID: 101}, // listed before its parent,
		{PID: 112, PPID: 110, PGID: 112, SID: 101}, // which leads a group
		{PID: 114, PPID: 110, PGID: 114, SID: 114}, // a worker with a session of its own
		{PID: 120, PPID: 100, PGID: 119, SID: 119}, // a daemon that has forked twice
		{PID: 130, PPID: 100, PGID: 130, SID: 130}, // setsid -f
		{PID: 131, PPID: 130, PGID: 130, SID: 130},
	}
	want := map[int]int{110: 110, 111: 110, 112: 112, 113: 112, 120: 120} // their groups
	moved := orphansMoved(tasks)
	if len(moved) != len(want) {
		t.Errorf("moved are %v", moved)
	}
	for pid, group := range want {
		if got := moved[pid]; got.SID != 100 || got.PGID != group {
			t.Errorf("process %d: session %d, group %d, want 100 and %d", pid, got.SID, got.PGID, group)
		}
	}
}
