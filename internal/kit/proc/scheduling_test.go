package proc

import (
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCPUsThatAreMissingAreNamed, and the thread is bound to the others, or to none.
func TestCPUsThatAreMissingAreNamed(t *testing.T) {
	var ours unix.CPUSet
	must(t, unix.SchedGetaffinity(0, &ours))
	first := 0
	for !ours.IsSet(first) {
		first++
	}
	for _, test := range []struct {
		had          []int
		warning, has string
	}{
		{[]int{first}, "", strconv.Itoa(first)},
		{[]int{first, 1000, 1001}, "3 CPUs, but may run on 1 of them here: it is bound to these", strconv.Itoa(first)},
		{[]int{1000, 1001}, "2 CPUs, but may run on none of them here: it is not bound", ""},
	} {
		cmd := start(t, "sleep", "1000")
		before, err := ReadStatus(cmd.Process.Pid)
		must(t, err)
		if test.has == "" {
			test.has = before.CPUs
		}
		var had unix.CPUSet
		for _, cpu := range test.had {
			had.Set(cpu)
		}
		err = Scheduling{CPUs: &had}.Apply(cmd.Process.Pid)
		if (err == nil) != (test.warning == "") || err != nil && !strings.Contains(err.Error(), test.warning) {
			t.Errorf("%v: %v", test.had, err)
		}
		if after, err := ReadStatus(cmd.Process.Pid); err != nil || after.CPUs != test.has {
			t.Errorf("%v: it may run on %s, want %s (%v)", test.had, after.CPUs, test.has, err)
		}
	}
}
