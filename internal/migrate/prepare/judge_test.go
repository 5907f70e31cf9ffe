package prepare

import (
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/hooks/config"
	"cucriu/hooks/preflight"
	"cucriu/internal/testenv"
)

// clone copies a job as the wire does.
func clone(t testing.TB, j *Job) *Job {
	t.Helper()
	data, err := json.Marshal(j)
	var copied Job
	if err == nil {
		err = json.Unmarshal(data, &copied)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &copied
}

// verdicts lists what is not in order, as "error file-missing".
func verdicts(findings preflight.Findings) []string {
	var list []string
	for _, f := range findings {
		if f.Severity != preflight.SeverityOK {
			list = append(list, string(f.Severity)+" "+f.Name)
		}
	}
	slices.Sort(list)
	return list
}

// change is a job that differs from one that can come in one respect.
type change struct {
	name   string
	change func(t *testing.T, j *Job, room *Room)
	want   []string // what is found besides
	words  []string // in the findings
	copies int
}

// elsewhere makes the job one of another machine, whose files are not this one's.
func elsewhere(j *Job) {
	j.Host.BootID = "another"
	for n := range j.Files {
		j.Files[n].Identity.Inode += 1 << 40
	}
}

// file makes a file for the test and adds it to the job, as it is.
func file(t *testing.T, j *Job, text string) *File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		t.Fatal(err)
	}
	j.Files = append(j.Files, File{
		Path: path, PID: j.RootPID, Size: stat.Size, Mode: stat.Mode,
		Identity: Identity{FileSystem: "ext4", Source: "/dev/sda", Device: stat.Dev, Inode: stat.Ino, Modified: time.Unix(stat.Mtim.Sec, stat.Mtim.Nsec)},
	})
	return &j.Files[len(j.Files)-1]
}

// program adds a library that the job has mapped.
func program(t *testing.T, j *Job) *File {
	t.Helper()
	at := slices.IndexFunc(j.Files, func(f File) bool { return f.BuildID != "" })
	if at < 0 {
		t.Fatalf("no program among %+v", j.Files)
	}
	return &j.Files[at]
}

func addresses(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

var changes = slices.Concat(machineChanges, gpuChanges, fileChanges, surroundingsChanges)

var machineChanges = []change{
	{name: "nothing", change: func(*testing.T, *Job, *Room) {}},
	{
		name: "another architecture", change: func(_ *testing.T, j *Job, _ *Room) { j.Host.Architecture = "mips" },
		want: []string{"error architecture"}, words: []string{"mips"},
	},
	{
		name: "a better processor", change: func(_ *testing.T, j *Job, _ *Room) {
			j.Host.CPU.Model, j.Host.CPU.Features = "Better 9000", append(j.Host.CPU.Features, "avx9", "amx_dream")
		},
		want: []string{"error cpu-features"}, words: []string{"Better 9000", "avx9, amx_dream"},
	},
	{name: "a lesser processor", change: func(_ *testing.T, j *Job, _ *Room) { j.Host.CPU.Features = j.Host.CPU.Features[1:] }},
	{
		name: "a newer kernel", change: func(_ *testing.T, j *Job, _ *Room) { j.Host.Kernel = "99.1.2-arch" },
		want: []string{"warning kernel"}, words: []string{"99.1.2-arch"},
	},
	{name: "an older kernel", change: func(_ *testing.T, j *Job, _ *Room) { j.Host.Kernel = "4.19.0" }},
	{
		name: "a newer criu", change: func(_ *testing.T, j *Job, _ *Room) { j.Host.Criu = "99.0" },
		want: []string{"error criu-version"}, words: []string{"99.0"},
	},
	{
		name: "no criu here", change: func(_ *testing.T, _ *Job, room *Room) { room.Criu = "/nonexistent/criu" },
		want: []string{"error criu-missing"},
	},
	{
		name: "what criu cannot do", change: func(_ *testing.T, j *Job, _ *Room) { j.Features = []string{"time_travel"} },
		want: []string{"error criu-feature"}, words: []string{"time_travel"},
	},
	{
		name: "another boot", change: func(_ *testing.T, j *Job, _ *Room) {
			j.Host.BootID, j.Host.Monotonic = "another", j.Host.Monotonic+time.Hour
			for n := range j.Files {
				j.Files[n].Written = false
			}
		},
		want: []string{"warning monotonic-clock"}, words: []string{"jumps by -"},
	},
	{name: "another boot and clocks of its own", change: func(_ *testing.T, j *Job, _ *Room) {
		j.Host.BootID, j.Host.Monotonic, j.Own.Time = "another", j.Host.Monotonic+time.Hour, true
		for n := range j.Files {
			j.Files[n].Written = false
		}
	}},
	{
		name: "a pid that is taken", change: func(_ *testing.T, j *Job, _ *Room) { j.Numbers = append(j.Numbers, os.Getpid()) },
		want: []string{"error pid-taken"},
	},
	{
		name: "a pid that is too high", change: func(_ *testing.T, j *Job, _ *Room) { j.Numbers = append(j.Numbers, maxPID) },
		want: []string{"error pid-taken"}, words: []string{"4194304"},
	},
	{name: "pids of its own", change: func(_ *testing.T, j *Job, _ *Room) { j.Numbers, j.Own.PID = nil, true }},
	{
		name: "more memory than there is", change: func(_ *testing.T, j *Job, _ *Room) { j.Processes[0].PrivateBytes = 1 << 48 },
		want: []string{"error disk-space", "error host-memory"}, words: []string{"256.0 TiB for its own memory"},
	},
	{
		name: "more memory than there is for an image in memory", change: func(_ *testing.T, j *Job, room *Room) {
			var stat unix.Sysinfo_t
			if err := unix.Sysinfo(&stat); err != nil {
				j.Processes = nil
			}
			room.Dir = "/dev/shm/not-there-yet"
			j.Processes[0].PrivateBytes = stat.Totalram * uint64(stat.Unit) * 2 / 3 // once it would fit
		},
		want: []string{"error disk-space", "error host-memory"}, words: []string{"/dev/shm keeps in memory"},
	},
}

var gpuChanges = []change{
	{
		name: "another driver", change: func(_ *testing.T, j *Job, _ *Room) { j.DriverVersion = "570.1.2" },
		want: []string{"error driver-version"}, words: []string{"570.1.2", "580.159.04"},
	},
	{
		name: "another model", change: func(_ *testing.T, j *Job, _ *Room) { j.Processes[0].GPUs[1].Model = "NVIDIA H100" },
		want: []string{"error gpu-map"}, words: []string{"NVIDIA H100"},
	},
	{
		name: "more GPUs than there are", change: func(_ *testing.T, j *Job, _ *Room) {
			third := j.Processes[0].GPUs[1]
			third.UUID[0]++
			j.Processes[0].GPUs = append(j.Processes[0].GPUs, third)
		},
		want: []string{"error gpu-map"}, words: []string{"and this host shows "},
	},
	{
		name: "more GPU memory than is free", change: func(_ *testing.T, j *Job, _ *Room) {
			j.Processes[0].MemoryBytes = map[cudackpt.UUID]uint64{j.Processes[0].GPUs[0].UUID: 1 << 30}
		},
		want: []string{"error gpu-memory"}, words: []string{"the restore needs"},
	},
	{
		name: "GPUs of another host", change: func(_ *testing.T, j *Job, _ *Room) {
			memory := make(map[cudackpt.UUID]uint64)
			for i := range j.Processes[0].GPUs {
				gpu := &j.Processes[0].GPUs[i]
				held := j.Processes[0].MemoryBytes[gpu.UUID]
				gpu.UUID[0]++
				memory[gpu.UUID] = held
			}
			j.Processes[0].MemoryBytes = memory
		},
		words: []string{"same PCI address"},
	},
	{
		name: "a map of its own", change: func(_ *testing.T, j *Job, _ *Room) {
			j.Map = []config.Rule{{From: config.Selector{Index: new(0)}, To: config.Selector{UUID: &j.Processes[0].GPUs[1].UUID}}}
		},
		words: []string{"rule", "same model, next in order"},
	},
	{
		name: "a map that cannot be met", change: func(_ *testing.T, j *Job, _ *Room) {
			to := config.Selector{Index: new(7)}
			j.Map = []config.Rule{{From: config.Selector{Index: new(0)}, To: to, Line: 12, File: "/c.yaml on a"}}
		},
		want: []string{"error gpu-map"}, words: []string{"index 7", "on line 12 of /c.yaml on a"},
	},
	{
		name: "no CUDA", change: func(t *testing.T, j *Job, _ *Room) {
			j.DriverVersion = ""
			for n := range j.Processes {
				j.Processes[n].GPUs, j.Processes[n].MemoryBytes = nil, nil
			}
		},
	},
}

var surroundingsChanges = []change{
	{
		name: "a terminal", change: func(_ *testing.T, j *Job, _ *Room) { j.Options.Terminal = true },
		want: []string{"error terminal"}, words: []string{"a terminal, which cannot be migrated"},
	},
	{
		name: "a UNIX socket", change: func(_ *testing.T, j *Job, _ *Room) { j.Options.Sockets = []string{"/nonexistent/log"} },
		want: []string{"error unix-socket"}, words: []string{"/nonexistent/log"},
	},
	{
		name: "a user that is nobody here", change: func(_ *testing.T, j *Job, _ *Room) { j.Processes[0].UID, j.Processes[0].User = 98765, "alice" },
		want: []string{"warning user"}, words: []string{"named alice on the source; this host has no such user"},
	},
	{
		name: "a user of another name", change: func(_ *testing.T, j *Job, _ *Room) { j.Processes[0].User = "toor" },
		want: []string{"warning user"}, words: []string{"named toor on the source; here that user is root"},
	},
	{
		name: "a control group", change: func(_ *testing.T, j *Job, _ *Room) { j.Cgroup = "/slurm/job_1" },
		want: []string{"warning cgroup-missing"}, words: []string{"/slurm/job_1"},
	},
	{
		name: "mounts of its own", change: func(_ *testing.T, j *Job, _ *Room) {
			j.Mounts = []Mount{{Path: "/nonexistent", FileSystem: "overlay", Source: "overlay"}}
			j.Files = append(j.Files, File{Path: "/nonexistent/file", PID: j.RootPID, Mode: unix.S_IFREG})
			j.Directories = append(j.Directories, "/nonexistent")
		},
		want: []string{"warning mounts"}, words: []string{"/nonexistent", "1 mount that", "1 file below"},
	},
	{
		name: "a port that is taken", change: func(t *testing.T, j *Job, _ *Room) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = listener.Close() })
			port := listener.Addr().(*net.TCPAddr).AddrPort().Port()
			j.Listening = []Listener{{PID: j.RootPID, Local: netip.AddrPortFrom(netip.IPv4Unspecified(), port)}}
		},
		want: []string{"error tcp-address"}, words: []string{"a program of this host listens on 127.0.0.1"},
	},
	{
		name: "an address that is elsewhere", change: func(_ *testing.T, j *Job, _ *Room) {
			j.Listening = []Listener{{PID: j.RootPID, Local: addresses("203.0.113.7:29500")}}
		},
		want: []string{"error tcp-address"}, words: []string{"203.0.113.7:29500"},
	},
	{
		name: "a connection that is kept", change: func(_ *testing.T, j *Job, room *Room) {
			room.TCP = TCPKeep
			j.Connections = []Connection{{PID: j.RootPID, Local: addresses("203.0.113.7:1"), Remote: addresses("203.0.113.8:2")}}
		},
		want: []string{"warning tcp-address"}, words: []string{"203.0.113.7"},
	},
	{name: "a network of its own", change: func(_ *testing.T, j *Job, _ *Room) {
		j.Own.Network = true
		j.Listening = []Listener{{PID: j.RootPID, Local: addresses("203.0.113.7:29500")}}
	}},
}

// TestWhatADestinationLacksIsFound changes a job that can come in one respect at a time.
func TestWhatADestinationLacksIsFound(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2, "--mib-per-gpu", "512")
		hook := hookOf(t, host)
		job := host.Start(1, "--mib", "16")
		base := described(t, hook, job)
		job.Kill()
		for n := range base.Files {
			base.Files[n].Written = false // the base is a job whose files are here
		}
		plain, err := Judge(t.Context(), hook, base, roomOf(t))
		if err != nil {
			t.Fatal(err)
		}
		usual := verdicts(plain.Findings) // such as a warning about this machine
		if err := plain.Err(); err != nil {
			t.Fatal(err)
		}
		for _, change := range changes {
			t.Run(change.name, func(t *testing.T) {
				j, room := clone(t, base), roomOf(t)
				var now unix.Timespec
				if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
					t.Fatal(err)
				}
				j.Host.Monotonic = time.Duration(now.Nano()) // the base was described a while ago
				change.change(t, j, &room)
				judgement, err := Judge(t.Context(), hook, j, room)
				if err != nil {
					t.Fatal(err)
				}
				if err := judgement.Validate(j); err != nil {
					t.Error(err)
				}
				want := slices.Sorted(slices.Values(slices.Concat(usual, change.want)))
				if diff := cmp.Diff(want, verdicts(judgement.Findings)); diff != "" {
					t.Errorf("(-want +got):\n%s\n%s", diff, judgement.Findings.Text())
				}
				for _, f := range judgement.Findings {
					if f.Severity != preflight.SeverityOK && f.Remedy == "" {
						t.Errorf("no remedy: %v", f)
					}
				}
				for _, word := range change.words {
					if !strings.Contains(judgement.Findings.Text(), word) {
						t.Errorf("nothing says %q:\n%s", word, judgement.Findings.Text())
					}
				}
				if len(judgement.Copies) != change.copies {
					t.Errorf("%d files are asked for, want %d: %s", len(judgement.Copies), change.copies, judgement.Findings.Text())
				}
			})
		}
	})
}

func TestWhatCanBeOverriddenIs(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		hook := hookOf(t, host)
		job := host.Start(1)
		j := described(t, hook, job)
		job.Kill()
		j.Host.CPU.Features = append(j.Host.CPU.Features, "avx9")
		hook.Force = []string{preflight.FindingCPU}
		judgement, err := Judge(t.Context(), hook, j, roomOf(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := judgement.Err(); err != nil {
			t.Error(err)
		}
		rows := Report{Destination: judgement}.Table()
		if !slices.ContainsFunc(rows, func(r Row) bool { return r.What == preflight.FindingCPU && r.Verdict == "forced" }) {
			t.Errorf("%+v", rows)
		}
	})
}
