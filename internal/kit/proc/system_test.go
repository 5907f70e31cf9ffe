package proc

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// systemOf returns a System with these files.
func systemOf(t *testing.T, files map[string]string) System {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return System{Root: root}
}

func TestSystemReadsTheKernelBelowItsRoot(t *testing.T) {
	s := systemOf(t, map[string]string{
		"proc/sys/kernel/osrelease":                  "6.18.2-amd64\n",
		"proc/meminfo":                               "MemTotal:       1000 kB\nMemAvailable:    512 kB\n",
		"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
	})
	if got, err := s.KernelVersion(); got != "6.18.2-amd64" || err != nil {
		t.Errorf("kernel %q, %v", got, err)
	}
	if got, err := s.AvailableMemory(); got != 512<<10 || err != nil {
		t.Errorf("available %d, %v", got, err)
	}
	if got, err := s.HugePages(); got != "madvise" || err != nil {
		t.Errorf("huge pages %q, %v", got, err)
	}
	if got, err := systemOf(t, nil).HugePages(); got != "" || err != nil {
		t.Errorf("huge pages of a kernel without: %q, %v", got, err)
	}
}

// TestTheMostMemoryIsWhatTheKernelGivesUp: what it would rather keep free and what ZFS caches, but not its last
// reserve.
func TestTheMostMemoryIsWhatTheKernelGivesUp(t *testing.T) {
	const meminfo = "proc/meminfo"
	files := map[string]string{meminfo: "MemAvailable: 512 kB\nMemFree: 300 kB\n"}
	check := func(kib uint64) {
		t.Helper()
		if got, err := systemOf(t, files).MostMemory(); got != kib<<10 || err != nil {
			t.Errorf("%d bytes, %v; want %d KiB", got, err, kib)
		}
	}
	check(512)
	files["proc/sys/vm/min_free_kbytes"] = "100\n"
	check(512) // some counters are missing
	files[meminfo] += "Active(file): 200 kB\nInactive(file): 150 kB\nSReclaimable: 50 kB\n"
	check(600)
	files["proc/spl/kstat/zfs/arcstats"] = "13 1 0x01 147 39984 6 7\nname  type data\nsize  4  1048576\nc_min  4  262144\n"
	check(600 + 768)
	files["proc/sys/vm/min_free_kbytes"] = "1000\n"
	check(512 + 768)
}

const (
	v2Mount = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	// Beside v2, as on hosts in transition.
	v1Mounts = "31 24 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n" +
		"32 24 0:28 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n" +
		"33 24 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)

func TestMemoryGroupsOnTheWayUp(t *testing.T) {
	for _, test := range []struct {
		name  string
		files map[string]string
		want  []MemoryGroup // Dir is relative to the root
	}{
		{"v2, the middle one without a limit", map[string]string{
			"proc/self/mountinfo":                    v2Mount,
			"proc/7/cgroup":                          "0::/a/b/c\n",
			"sys/fs/cgroup/a/memory.max":             "1000000\n",
			"sys/fs/cgroup/a/memory.current":         "900000\n",
			"sys/fs/cgroup/a/memory.stat":            "anon 300000\nfile 600000\ninactive_file 250000\nactive_file 250000\n",
			"sys/fs/cgroup/a/b/memory.max":           "max\n",
			"sys/fs/cgroup/a/b/c/memory.max":         "500000\n",
			"sys/fs/cgroup/a/b/c/memory.current":     "600000\n",
			"sys/fs/cgroup/a/b/c/memory.stat":        "inactive_file 0\n",
			"sys/fs/cgroup/other/memory.max":         "1\n",
			"sys/fs/cgroup/a/b/c/memory.high":        "1\n",
			"sys/fs/cgroup/a/b/c/memory.swap.max":    "1\n",
			"sys/fs/cgroup/a/b/c/d/memory.max":       "1\n",
			"sys/fs/cgroup/a/b/c/cgroup.controllers": "memory\n",
		}, []MemoryGroup{
			{Dir: "sys/fs/cgroup/a/b/c", Limit: 500000, Usage: 600000},
			{Dir: "sys/fs/cgroup/a", Limit: 1000000, Usage: 900000, Reclaimable: 500000},
		}},
		{"v2, the root of a cgroup namespace", map[string]string{
			"proc/self/mountinfo":          v2Mount,
			"proc/7/cgroup":                "0::/\n",
			"sys/fs/cgroup/memory.max":     "4096\n",
			"sys/fs/cgroup/memory.current": "1024\n",
			"sys/fs/cgroup/memory.stat":    "",
		}, []MemoryGroup{{Dir: "sys/fs/cgroup", Limit: 4096, Usage: 1024}}},
		{"v1 beside v2", map[string]string{
			"proc/self/mountinfo": v1Mounts,
			"proc/7/cgroup":       "6:freezer:/x\n4:memory:/job\n0::/x\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":     "9223372036854771712\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes":     "77\n",
			"sys/fs/cgroup/memory/memory.stat":               "",
			"sys/fs/cgroup/memory/job/memory.limit_in_bytes": "8192\n",
			"sys/fs/cgroup/memory/job/memory.usage_in_bytes": "4096\n",
			"sys/fs/cgroup/memory/job/memory.stat":           "inactive_file 1\ntotal_inactive_file 1024\ntotal_active_file 1024\n",
		}, []MemoryGroup{{Dir: "sys/fs/cgroup/memory/job", V1: true, Limit: 8192, Usage: 4096, Reclaimable: 2048}}},
		{"no limit anywhere", map[string]string{
			"proc/self/mountinfo": v2Mount,
			"proc/7/cgroup":       "0::/a\n",
		}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := systemOf(t, test.files)
			for i := range test.want {
				test.want[i].Dir = filepath.Join(s.Root, test.want[i].Dir)
			}
			got, err := s.MemoryGroups(7)
			must(t, err)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRoomOfAMemoryGroup(t *testing.T) {
	for _, test := range []struct {
		group MemoryGroup
		want  uint64
	}{
		{MemoryGroup{Limit: 100, Usage: 60}, 40},
		{MemoryGroup{Limit: 100, Usage: 90, Reclaimable: 50}, 60},
		{MemoryGroup{Limit: 100, Usage: 130}, 0},
		{MemoryGroup{Limit: 100, Usage: 30, Reclaimable: 50}, 100}, // the two are not read at the same time
	} {
		if got := test.group.Room(); got != test.want {
			t.Errorf("%+v has room for %d, want %d", test.group, got, test.want)
		}
	}
}
