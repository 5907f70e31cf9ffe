package criuutil

import (
	"os"
	"path/filepath"
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
		{"criu dump -sR -t 7", Criu{LeaveRunning: true}},
		{"criu dump -R --leave-s -t 7", Criu{LeaveStopped: true}},
		{"criu dump -vs -t 7", Criu{}}, // the optional argument of -v
		{"criu dump -Ds -t 7", Criu{}}, // the directory s
		{"criu dump -D -s -t 7", Criu{}},
		{"criu dump --leave-stopped -t 7", Criu{LeaveStopped: true}},
		{"criu dump --leave-r --freeze-cgroup=/x -t 7", Criu{LeaveRunning: true, FreezeCgroup: true}},
		{"criu dump --freeze-cgroup /x -t 7", Criu{FreezeCgroup: true}},
		{"criu restore -d -s -D .", Criu{LeaveStopped: true}},
		{"criu exec -- -s", Criu{}},
		{"criu swrk 3", Criu{RPC: true}},
		{"criu: dump --rpc -t 7", Criu{RPC: true}},
		{"criu: restore --rpc", Criu{RPC: true}},
		{"criu dump --libdir /a -t 7 -s", Criu{LibDir: "/a", LeaveStopped: true}},
		{"criu dump --lib=/a -jL /b", Criu{LibDir: "/b"}},
		{"criu dump -L/c --prev-images-dir ../1", Criu{LibDir: "/c", PagesElsewhere: true}},
		{"criu dump -t 7 --page-server --port 9", Criu{PagesElsewhere: true}},
		{"criu restore --auto-dedup -D .", Criu{AutoDedup: true}},
		{"criu dump -t 7 -L", Criu{}},
	} {
		var got Criu
		got.readArguments(strings.Fields(test.args))
		if got != test.want {
			t.Errorf("%s: %+v, want %+v", test.args, got, test.want)
		}
	}
}

func TestCriuConfiguration(t *testing.T) {
	var got Criu
	got.readConfiguration("# leave-running\n\n  leave-stopped # as it were\nfreeze-cgroup = /x\nlog-file leave-running\nlibdir \"/a\"\n")
	if want := (Criu{LeaveStopped: true, FreezeCgroup: true, LibDir: "/a"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for args, want := range map[string][]string{
		"criu dump":                       {"/etc/criu/default.conf", "/root/.criu/default.conf"},
		"criu dump --no-default-config":   nil,
		"criu dump --config file -D x":    {"file"},
		"criu restore --config=file -D x": {"file"},
	} {
		getenv := func(name string) string { return map[string]string{"HOME": "/root"}[name] }
		if files := configurationFiles(strings.Fields(args), getenv); !slices.Equal(files, want) {
			t.Errorf("%s reads %v, want %v", args, files, want)
		}
	}
}

func TestTheLastLibdirCounts(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	fromEnv, named := file("env", "libdir /env"), file("named", "libdir=/named")
	for _, test := range []struct {
		args string
		env  map[string]string
		want string
	}{
		{"criu dump --no-default-config", map[string]string{"CRIU_LIBS_DIR": "/libs"}, "/libs"},
		{"criu dump --no-default-config", map[string]string{"CRIU_LIBS_DIR": "/libs", "CRIU_CONFIG_FILE": fromEnv}, "/env"},
		{"criu dump --config " + named, map[string]string{"CRIU_CONFIG_FILE": fromEnv}, "/named"},
		{"criu dump -L /args --config " + named, nil, "/args"},
	} {
		var got Criu
		if err := got.readOptions("/usr/sbin/criu", strings.Fields(test.args), func(name string) string { return test.env[name] }); err != nil {
			t.Fatal(err)
		}
		if got.LibDir != test.want || !got.LibDirGiven {
			t.Errorf("%s with %v: libdir %q, want %q", test.args, test.env, got.LibDir, test.want)
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

// FuzzCriuArguments checks that no option is read that is not on the command line, and that
// words after one that ends the options change nothing.
func FuzzCriuArguments(f *testing.F) {
	for _, seed := range []string{"dump -t 7 -vRs --leave-stopped", "-L plugins --libdir=other", "restore --stream -- -R", "--lib", "-L", "swrk 3", "dump -t"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, args string) {
		words := strings.Fields("criu " + args)
		var criu Criu
		criu.readArguments(words)
		has := func(begins string, letter rune) bool {
			return slices.ContainsFunc(words[1:], func(word string) bool {
				long, isLong := strings.CutPrefix(word, "--")
				return isLong && strings.HasPrefix(long, begins) || letter != 0 && !isLong && strings.HasPrefix(word, "-") && strings.ContainsRune(word, letter)
			})
		}
		for name, test := range map[string]struct{ read, has bool }{
			"leave-stopped": {criu.LeaveStopped, has("leave-s", 's')},
			"leave-running": {criu.LeaveRunning, has("leave-r", 'R')},
			"freeze-cgroup": {criu.FreezeCgroup, has("fr", 0)},
			"auto-dedup":    {criu.AutoDedup, has("au", 0)},
			"lazy-pages":    {criu.LazyPages, has("la", 0)},
			"pages":         {criu.PagesElsewhere, has("pa", 0) || has("pr", 0) || has("la", 0) || has("str", 0)},
			"libdir":        {criu.LibDir != "", has("lib", 'L') && strings.Contains(args, criu.LibDir)},
		} {
			if test.read && !test.has {
				t.Errorf("%s is read out of %q", name, words)
			}
		}
		var ended Criu
		ended.readArguments(append(words, "x", "--", "--leave-stopped", "-R", "swrk"))
		if (ended.LeaveStopped || ended.LeaveRunning) && !criu.LeaveStopped && !criu.LeaveRunning {
			t.Errorf("%q is read on behind its end", words)
		}
	})
}
