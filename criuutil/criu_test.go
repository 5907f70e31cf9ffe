package criuutil

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestCriuArguments(t *testing.T) {
	for _, test := range []struct {
		args string
		want Criu
	}{
		{"criu dump -t 7 -D dir", Criu{}},
		{"criu dump -t 7 -s", Criu{LeaveStopped: true}},
		{"criu dump -jRt 7", Criu{LeaveRunning: true}},
		{"criu dump -vs -t 7", Criu{}}, // the optional argument of -v
		{"criu dump -Ds -t 7", Criu{}}, // the directory s
		{"criu dump -D -s -t 7", Criu{}},
		{"criu dump --leave-stopped -t 7", Criu{LeaveStopped: true}},
		{"criu dump --leave-r --freeze-cgroup=/x -t 7", Criu{LeaveRunning: true, FreezeCgroup: true}},
		{"criu dump --freeze-cgroup /x -t 7", Criu{FreezeCgroup: true}},
		{"criu restore -d -s -D .", Criu{LeaveStopped: true}},
		{"criu exec -- -s", Criu{}},
		{"criu swrk 3", Criu{RPC: true}},
		{"criu:_dump_--rpc_-t_7", Criu{RPC: true}}, // one word, which criu itself has set
		{"criu:_restore_--rpc", Criu{RPC: true}},
	} {
		var got Criu
		args := strings.Fields(test.args)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "_", " ")
		}
		got.readArguments(args)
		if got != test.want {
			t.Errorf("%s: %+v, want %+v", test.args, got, test.want)
		}
	}
}

func TestCriuConfiguration(t *testing.T) {
	var got Criu
	got.readConfiguration("# leave-running\n\n  leave-stopped # as it were\nfreeze-cgroup = /x\nlog-file leave-running\n")
	if want := (Criu{LeaveStopped: true, FreezeCgroup: true}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for args, want := range map[string][]string{
		"criu dump":                       {"/etc/criu/default.conf", "/root/.criu/default.conf"},
		"criu dump --no-default-config":   nil,
		"criu dump --config file -D x":    {"file"},
		"criu restore --config=file -D x": {"file"},
	} {
		if files := configurationFiles(strings.Fields(args), "/root"); !slices.Equal(files, want) {
			t.Errorf("%s reads %v, want %v", args, files, want)
		}
	}
}

func TestCriuOfRefusesWhatCriuDidNotSet(t *testing.T) {
	for _, variable := range []string{
		"", "/tmp/images", "/proc/self/fd/3", "/proc/1/fd/3/../../2", "/proc/99999999999999999999/fd/3", "/proc/-1/fd/3",
		"/proc/" + strings.Repeat("9", 9) + "/fd/3",
		"/proc/2/fd/3", // kthreadd, not an ancestor of anybody here
	} {
		if criu, err := CriuOf(variable); err == nil {
			criu.Close()
			t.Errorf("CriuOf(%q) found process %d", variable, criu.PID)
		}
	}
	parent, err := CriuOf("/proc/" + strconv.Itoa(os.Getppid()) + "/fd/3")
	if err != nil {
		t.Fatal(err)
	}
	parent.Close()
}

func FuzzCriuArguments(f *testing.F) {
	f.Add("dump -t 7 -vRs --leave-stopped")
	f.Fuzz(func(_ *testing.T, args string) {
		new(Criu).readArguments(strings.Fields("criu " + args))
	})
}
