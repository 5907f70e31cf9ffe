package inspect

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/proc"
)

// TestARestoreNeedsHostMemoryBesideWhatIsPromised, on a host and in a control group with other limits.
func TestARestoreNeedsHostMemoryBesideWhatIsPromised(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const dir, mib = "sys/fs/cgroup/job", 1 << 20
	write("proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
	write("proc/1/cgroup", "0::/job\n")
	write(dir+"/memory.current", "4194304\n")
	write(dir+"/memory.stat", "inactive_file 1048576\nslab_reclaimable 1048576\n")
	write(dir+"/memory.max", "max\n")
	write("proc/meminfo", "MemAvailable: 8192 kB\nSwapFree: 2048 kB\n") // 10 MiB
	group := proc.MemoryGroup{Dir: filepath.Join(root, dir)}.ID()
	in := func(bytes uint64) HostNeed { return HostNeed{Bytes: bytes, Groups: []uint64{group}} }
	out := func(bytes uint64) HostNeed { return HostNeed{Bytes: bytes, Groups: []uint64{group + 1}} }
	for name, test := range map[string]struct {
		max      string
		need     HostNeed
		promised []HostNeed
		finding  string
		says     []string
		waits    bool // for others
	}{
		"just enough":           {need: in(10 * mib)},
		"nothing is known":      {need: HostNeed{}, promised: []HostNeed{in(20 * mib)}},
		"beside others":         {need: in(4 * mib), promised: []HostNeed{in(3 * mib), out(3 * mib)}},
		"swap and cache, group": {max: "8388608", need: in(8 * mib)}, // of 8 MiB 2 are used, beside 2 of swap
		"others in other groups": {
			max: "8388608", need: in(4 * mib), promised: []HostNeed{in(4 * mib), out(2 * mib)},
		},
		"in no group that counts": {max: "0", need: out(10 * mib)},
		"too little": {
			need: in(10*mib + 1), finding: preflight.FindingHostMemory,
			says: []string{"has 10 MiB of memory available, and the restore needs at least 11 MiB", "free 1 MiB"},
		},
		"too little beside others": {
			need: in(4*mib + 1), promised: []HostNeed{in(3 * mib), out(3 * mib)}, waits: true,
			finding: preflight.FindingHostMemory,
			says:    []string{"10 MiB of memory", "restored still need 6 MiB", "at least 5 MiB", "try again", "free 1 MiB"},
		},
		"more is promised than there is": {
			need: in(mib), promised: []HostNeed{out(20 * mib)}, finding: preflight.FindingHostMemory, waits: true,
		},
		"too little in the group": {
			max: "8388608", need: in(8*mib + 1), finding: preflight.FindingMemoryCgroup,
			says: []string{dir + " has, of its limit of 8 MiB, 8 MiB", "at least 9 MiB", "raise its memory.max"},
		},
		"too little in the group beside others": {
			max: "8388608", need: in(4*mib + 1), promised: []HostNeed{in(4 * mib), out(mib)}, waits: true,
			finding: preflight.FindingMemoryCgroup, says: []string{"still need 4 MiB"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			write(dir+"/memory.max", "max\n")
			if test.max != "" {
				write(dir+"/memory.max", test.max+"\n")
			}
			err := test.need.Require(proc.System{Root: root}, 1, test.promised)
			if test.finding == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			short, is := errors.AsType[*memoryError](err)
			if !is || short.Finding != test.finding || PlanFinding(err).Name != test.finding {
				t.Fatalf("%v, want a finding %s", err, test.finding)
			}
			for _, text := range test.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q does not say %q", err, text)
				}
			}
			if waits := Patience(err) == promisePatience; waits != test.waits {
				t.Errorf("it waits for %v", Patience(err))
			}
		})
	}
}
