package inspect

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
)

// severities returns the findings as "name=severity", or "name=forced" if overridden.
func severities(findings preflight.Findings) string {
	var all []string
	for _, f := range findings {
		severity := string(f.Severity)
		if f.Forced {
			severity = "forced"
		}
		all = append(all, f.Name+"="+severity)
	}
	return strings.Join(all, " ")
}

// TestACancelledInspectionFindsNothing: what the driver did not answer then says nothing about a process.
func TestACancelledInspectionFindsNothing(t *testing.T) {
	signalled, failed := errors.New("got SIGINT"), errors.New("the driver does not answer")
	for _, cancels := range []bool{false, true} {
		ctx, cancel := context.WithCancelCause(t.Context())
		of := &inventory.Process{PID: os.Getpid()}
		held := inventory.DriverUse{Libcuda: true, Devices: []string{"/dev/nvidia0"}}
		p, err := askDriver(ctx, of, held, func() (*cudackpt.Driver, error) {
			if cancels {
				cancel(signalled)
			}
			return nil, failed
		}, false)
		cancel(nil)
		if cancels && (!errors.Is(err, signalled) || len(p.Findings) > 0) || !cancels && (err != nil || len(p.Findings) != 1) {
			t.Errorf("cancelled %v: %v, %v", cancels, p.Findings, err)
		}
	}
}

func TestUnknownSharing(t *testing.T) {
	holds, none := map[cudackpt.UUID]uint64{{1}: 1 << 20}, map[cudackpt.UUID]uint64{}
	for _, test := range []struct {
		name   string
		listed []map[cudackpt.UUID]uint64
		want   string
	}{
		{"nobody", nil, ""},
		{"one", []map[cudackpt.UUID]uint64{holds}, ""},
		{"two", []map[cudackpt.UUID]uint64{holds, holds}, "shared-gpu-memory=error"},
		{"two of which nothing is known", []map[cudackpt.UUID]uint64{nil, nil}, "shared-gpu-memory=error"},
		{"one beside a worker without a context", []map[cudackpt.UUID]uint64{holds, none}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var processes []Process
			for i, listed := range test.listed {
				processes = append(processes, Process{Ident: proc.Ident{PID: i + 1}, Listed: listed})
			}
			if got := severities(unknownSharing(processes, errors.New("silent"))); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

func TestPluginFindings(t *testing.T) {
	plugins, empty, tools := t.TempDir(), t.TempDir(), t.TempDir()
	for path, mode := range map[string]os.FileMode{filepath.Join(plugins, cudaPlugin): 0o600, filepath.Join(tools, cudaCheckpoint): 0o700} {
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	missing := filepath.Join(empty, "missing")
	for _, test := range []struct {
		libdir string
		given  bool
		path   string
		want   string
	}{
		{plugins, true, "/nonexistent:" + tools, "cuda-plugin=error"},
		{plugins, false, empty, "cuda-plugin=warning"},
		{empty, true, tools, ""},
		{missing, true, tools, "plugin-dir=error"},
		{missing, false, tools, ""},
		{"", false, tools, ""},
	} {
		if got := severities(pluginFindings(test.libdir, test.given, test.path)); got != test.want {
			t.Errorf("libdir %q, PATH %q: %q, want %q", test.libdir, test.path, got, test.want)
		}
	}
}

func TestMachineFindings(t *testing.T) {
	for criu, want := range map[string]string{"4.2.1": "", "4.1.1": "", "3.17.1": "criu-version=error", "v4": "criu-version=warning"} {
		if got := severities(CriuVersionFindings(criu)); got != want {
			t.Errorf("criu %s: %q, want %q", criu, got, want)
		}
	}
	const all = 1<<41 - 1
	for effective, want := range map[uint64]string{
		all: "capabilities=ok", all &^ (1 << 24): "capabilities=ok",
		all &^ (1 << 12): "capabilities=warning", all &^ (1 << 19): "capabilities=error", 0: "capabilities=error",
	} {
		if got := severities(preflight.Findings{capabilityFinding(effective)}); got != want {
			t.Errorf("capabilities %#x: %q, want %q", effective, got, want)
		}
	}
	for mode, want := range map[string]string{"always": "thp=ok", "madvise": "thp=ok", "": "thp=warning"} {
		if got := severities(preflight.Findings{hugePageFinding(mode)}); got != want {
			t.Errorf("huge pages %q: %q, want %q", mode, got, want)
		}
	}
}

// TestStagingFindings has two processes of 3 MiB each below a group of 8 MiB. One of them is in
// a group of its own inside it.
func TestStagingFindings(t *testing.T) {
	root := t.TempDir()
	const dir = "sys/fs/cgroup/job"
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
	write("proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
	write("proc/1/cgroup", "0::/job\n")
	write("proc/2/cgroup", "0::/job/inner\n")
	write("proc/3/cgroup", "0::/\n")
	for _, group := range []string{dir, dir + "/inner"} {
		write(group+"/memory.current", "1048576\n")
		write(group+"/memory.stat", "")
	}
	member := func(pid int) Process {
		return Process{Ident: proc.Ident{PID: pid}, MemoryBytes: map[cudackpt.UUID]uint64{{1}: 1 << 20, {2}: 2 << 20}}
	}
	for _, test := range []struct {
		available, outer, inner string
		want                    string
		image                   memoryImage
	}{
		{"6144", "7340032", "4194304", "", memoryImage{}}, // 6 MiB, 7 MiB, and 4 MiB with 1 in use: just enough
		{"6143", "7340032", "4194304", "staging-memory=error", memoryImage{}},
		{"6144", "7340031", "4194304", "memory-cgroup=error", memoryImage{}},
		{"6144", "7340032", "4194303", "memory-cgroup=error", memoryImage{}},
		{"6144", "max", "max", "", memoryImage{}},
		{"0", "0", "0", "staging-memory=error memory-cgroup=error memory-cgroup=error", memoryImage{}},

		// An image in memory is counted on top: against the host's memory and that of the
		// writer's groups.
		{"9216", "max", "max", "", memoryImage{3 << 20, 3, 0}},
		{"9215", "max", "max", "staging-memory=error", memoryImage{3 << 20, 3, 0}},
		{"9216", "7340032", "4194304", "", memoryImage{3 << 20, 3, 0}},
		{"9216", "10485760", "4194304", "", memoryImage{3 << 20, 1, 0}},
		{"9216", "10485759", "4194304", "memory-cgroup=error", memoryImage{3 << 20, 1, 0}},
		{"9216", "10485760", "4194304", "memory-cgroup=error", memoryImage{3 << 20, 2, 0}},
		{"9216", "10485760", "7340032", "", memoryImage{3 << 20, 2, 0}},

		// What makes the dump counts in groups of the job only.
		{"6144", "8388608", "4194304", "", memoryImage{0, 1, 1 << 20}},
		{"6144", "8388607", "4194304", "memory-cgroup=error", memoryImage{0, 1, 1 << 20}},
		{"6144", "7340032", "4194304", "", memoryImage{0, 3, 1 << 20}},
	} {
		write("proc/meminfo", "MemAvailable: "+test.available+" kB\n")
		write(dir+"/memory.max", test.outer+"\n")
		write(dir+"/inner/memory.max", test.inner+"\n")
		findings, err := stagingFindings(proc.System{Root: root}, []Process{member(1), member(2)}, test.image)
		if err != nil {
			t.Fatal(err)
		}
		if got := severities(findings); got != test.want {
			t.Errorf("%+v: %q, want %q", test, got, test.want)
		}
	}
}

func TestWhatNVMLDoesNotListHoldsNothingOnlyIfItListsOthers(t *testing.T) {
	held := map[cudackpt.UUID]uint64{{1}: 518 << 20}
	one, none := Process{Listed: held, MemoryBytes: held}, Process{Listed: map[cudackpt.UUID]uint64{}}
	for _, test := range []struct {
		name   string
		listed []Process
		want   bool // of the last one
		warned int  // about so many
	}{
		{"beside one that is listed", []Process{one, none}, true, 0},
		{"alone", []Process{none}, false, 1},
		{"NVML lists nobody", []Process{none, none}, false, 2},
		{"NVML did not answer", []Process{one, {}}, false, 0}, // which is an error, not a warning
		{"listed", []Process{none, one}, false, 0},
		{"listed without a size", []Process{none, {Listed: held}}, false, 1},
	} {
		if got := holdsNothing(test.listed, len(test.listed)-1); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
		if got := memoryFindings(test.listed); len(got) != test.warned {
			t.Errorf("%s: %d warnings, want %d: %+v", test.name, len(got), test.warned, got)
		}
	}
}

func TestLibrariesThatMayUseAnIOUringAreKnown(t *testing.T) {
	for path, want := range map[string]bool{
		"/usr/lib/x86_64-linux-gnu/libuv.so.1.0.0":                                       true,
		"/usr/lib/x86_64-linux-gnu/liburing.so.2.3":                                      true,
		"/venv/lib/python3.11/site-packages/uvloop/loop.cpython-311-x86_64-linux-gnu.so": true,
		"/venv/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so":                   true,
		"/usr/bin/node":                          true,
		"/usr/bin/nodejs":                        true,
		"/usr/lib/x86_64-linux-gnu/libc.so.6":    false,
		"/home/user/node/train.bin":              false,
		"/usr/lib/x86_64-linux-gnu/libcuda.so.1": false,
	} {
		if got := ringUser.MatchString(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}

// TestAStateIsMendedByWhatItsRemedySays: recover mends none of them, because no session holds the
// process, and resume cannot mend what the driver has given up.
func TestAStateIsMendedByWhatItsRemedySays(t *testing.T) {
	for state, says := range map[cudackpt.State]string{
		cudackpt.StateLocked:        "cucriu unlock -p 42 ",
		cudackpt.StateCheckpointed:  "cucriu resume -p 42 --force",
		cudackpt.StateFailed:        "end it, and restore it from an image",
		cudackpt.StateCheckpointing: "wait until that is over",
		cudackpt.StateRestoring:     "wait until that is over",
	} {
		t.Run(state.String(), func(t *testing.T) {
			p := &Process{Name: "a"}
			p.PID = 42
			findings := StateFindings(p, state)
			if len(findings) != 1 || findings[0].Severity != preflight.SeverityError || !strings.Contains(findings[0].Message, state.String()) {
				t.Fatalf("%+v", findings)
			}
			remedy := findings[0].Remedy
			if !strings.Contains(remedy, says) || strings.Contains(remedy, "recover") || state == cudackpt.StateFailed && strings.Contains(remedy, "cucriu") {
				t.Errorf("the remedy is %q", remedy)
			}
		})
	}
	if findings := StateFindings(&Process{}, cudackpt.StateRunning); len(findings) > 0 {
		t.Errorf("a process that runs: %+v", findings)
	}
}
