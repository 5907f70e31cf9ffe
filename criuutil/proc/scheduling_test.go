package proc

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestListsOfCPUsAreRead(t *testing.T) {
	set, err := parseCPUs("0-2,5,63-64")
	if err != nil || set.Count() != 6 || !set.IsSet(2) || !set.IsSet(64) || set.IsSet(3) {
		t.Errorf("%v %v", set, err)
	}
	for _, list := range []string{"", "a", "1-", "-1", "0-4294967295", "1024", "2,,3"} {
		if _, err := parseCPUs(list); err == nil {
			t.Errorf("%q is accepted", list)
		}
	}
}

// TestCPUsThatAreMissingAreNamed, and the thread is bound to the others, or to none.
func TestCPUsThatAreMissingAreNamed(t *testing.T) {
	var ours unix.CPUSet
	if err := unix.SchedGetaffinity(0, &ours); err != nil {
		t.Fatal(err)
	}
	first := 0
	for !ours.IsSet(first) {
		first++
	}
	here := strconv.Itoa(first)
	for _, test := range []struct{ had, warning, has string }{
		{here, "", here},
		{here + ",1000-1002", "may run on 1 of 4 here: it is bound to these", here},
		{"1000-1002", "on none of them here: it is not bound", ""},
	} {
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
		before, err := ReadStatus(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		if test.has == "" {
			test.has = before.CPUs
		}
		err = Scheduling{CPUs: test.had}.Apply(cmd.Process.Pid)
		if (err == nil) != (test.warning == "") || err != nil && !strings.Contains(err.Error(), test.warning) {
			t.Errorf("%s: %v", test.had, err)
		}
		if after, err := ReadStatus(cmd.Process.Pid); err != nil || after.CPUs != test.has {
			t.Errorf("%s: it may run on %s, want %s (%v)", test.had, after.CPUs, test.has, err)
		}
	}
}
