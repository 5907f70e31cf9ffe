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
	moved := orphansMoved(tasks, true)
	if len(moved) != len(want) {
		t.Errorf("moved are %v", moved)
	}
	for pid, group := range want {
		if got := moved[pid]; got.SID != 100 || got.PGID != group {
			t.Errorf("process %d: session %d, group %d, want 100 and %d", pid, got.SID, got.PGID, group)
		}
	}
}

// TestSessionsThatCannotBeInherited are given up for the parent's: their leader has ended or is not above them, or a
// process between would have been born in two.
func TestSessionsThatCannotBeInherited(t *testing.T) {
	root := Task{PID: 100, PPID: 1, PGID: 100, SID: 100}
	for name, test := range map[string]struct {
		subreaper bool
		tasks     []Task
		want      map[int][2]int // session and group of those that are moved
	}{
		"the leader has ended, the parent leads another": {
			true,
			[]Task{{PID: 105, PPID: 100, PGID: 105, SID: 105}, {PID: 106, PPID: 105, PGID: 104, SID: 104}, {PID: 107, PPID: 106, PGID: 104, SID: 104}},
			map[int][2]int{106: {105, 106}, 107: {105, 106}},
		},
		"and the root is no subreaper": {
			false,
			[]Task{{PID: 105, PPID: 100, PGID: 105, SID: 105}, {PID: 106, PPID: 105, PGID: 104, SID: 104}},
			map[int][2]int{106: {105, 106}},
		},
		"the parent is a subreaper": {
			true,
			[]Task{{PID: 103, PPID: 100, PGID: 100, SID: 100}, {PID: 105, PPID: 103, PGID: 104, SID: 104}},
			map[int][2]int{105: {100, 105}},
		},
		"the leader is a sibling": {
			true,
			[]Task{{PID: 103, PPID: 100, PGID: 100, SID: 100}, {PID: 104, PPID: 103, PGID: 104, SID: 104}, {PID: 105, PPID: 103, PGID: 104, SID: 104}},
			map[int][2]int{105: {100, 105}},
		},
		"the parent has begun a session of its own": {
			true,
			[]Task{{PID: 103, PPID: 100, PGID: 103, SID: 103}, {PID: 104, PPID: 103, PGID: 100, SID: 100}},
			nil,
		},
		"the parent was born in one session": {
			true,
			[]Task{{PID: 103, PPID: 100, PGID: 103, SID: 103}, {PID: 104, PPID: 103, PGID: 104, SID: 104}, {PID: 105, PPID: 104, PGID: 103, SID: 103}, {PID: 106, PPID: 104, PGID: 100, SID: 100}},
			map[int][2]int{106: {104, 106}},
		},
		"a helper leads it": {
			false,
			[]Task{{PID: 105, PPID: 100, PGID: 104, SID: 104}, {PID: 106, PPID: 105, PGID: 106, SID: 106}, {PID: 107, PPID: 106, PGID: 104, SID: 104}},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			moved := orphansMoved(append([]Task{root}, test.tasks...), test.subreaper)
			if len(moved) != len(test.want) {
				t.Errorf("moved are %v", moved)
			}
			for pid, want := range test.want {
				if got := moved[pid]; got.SID != want[0] || got.PGID != want[1] {
					t.Errorf("process %d: session %d, group %d, want %v", pid, got.SID, got.PGID, want)
				}
			}
		})
	}
	// The root is in a shell's session: nothing leads that above the child.
	shell := []Task{{PID: 100, PPID: 1, PGID: 100, SID: 50}, {PID: 103, PPID: 100, PGID: 103, SID: 103}, {PID: 104, PPID: 103, PGID: 100, SID: 50}}
	if moved := orphansMoved(shell, false); moved[104].SID != 103 || moved[104].PGID != 104 {
		t.Errorf("moved are %v", moved)
	}
}
