package prepare

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
	"cucriu/internal/gpumap"
	"cucriu/internal/image"
)

// sample is a job that has some of everything.
func sample() *Job {
	gpu := cudackpt.GPU{UUID: cudackpt.UUID{1, 2, 3}, Model: "NVIDIA H200", PCIBusID: "0000:41:00.0"}
	return &Job{
		Version: Version,
		Host: Host{
			Name: "gpu-a", BootID: "ea61a286-1c2b-4a4f-b028-6b7227b7ae8a", Architecture: "amd64", Kernel: "6.18.2-amd64", Criu: "4.2.1",
			CPU: CPU{Model: "AMD EPYC", Features: []string{"avx", "avx2"}}, Monotonic: time.Hour,
		},
		RootPID: 4711, DriverVersion: "580.159.04",
		Processes: []Process{
			{PID: 4711, Name: "python", UID: 1000, User: "alice", Threads: 3, PrivateBytes: 1 << 30, GPUs: []cudackpt.GPU{gpu}, MemoryBytes: map[cudackpt.UUID]uint64{gpu.UUID: 1 << 34}},
			{PID: 4720, Name: "pt_data_worker", UID: 1000, User: "alice", Threads: 1, PrivateBytes: 1 << 20},
		},
		Numbers: []int{4711, 4712, 4713, 4720}, SharedBytes: 4096,
		Files: []File{
			{Path: "/usr/bin/python3.13", PID: 4711, Size: 6 << 20, Mode: unix.S_IFREG | 0o755, BuildID: "7ebc65e5", Identity: Identity{FileSystem: "ext4", Source: "/dev/sda1", Inode: 7}},
			{Path: "/data/train.log", PID: 4711, Size: 100, Mode: unix.S_IFREG | 0o644, Written: true, AppendOnly: true, Identity: Identity{FileSystem: "nfs4", Source: "server:/data"}},
			{Path: "/run/pipe", PID: 4711, Pipe: true, Mode: unix.S_IFIFO | 0o600},
		},
		Directories: []string{"/", "/home/alice"},
		Mounts:      []Mount{{Path: "/scratch", FileSystem: "tmpfs", Source: "none"}},
		Cgroup:      "/system.slice/train.service",
		Connections: []Connection{{PID: 4711, Local: netip.MustParseAddrPort("10.0.0.1:40000"), Remote: netip.MustParseAddrPort("10.0.0.2:443")}},
		Listening:   []Listener{{PID: 4711, Local: netip.MustParseAddrPort("[::]:29500")}},
		Options:     image.Options{TCPEstablished: true, NetworkLock: "nftables", Sockets: []string{"/dev/log"}, Pipes: []image.Pipe{{Name: "pipe:[77]"}}},
		Features:    []string{"network_lock_nftables"},
		Map:         []gpumap.Rule{{From: gpumap.ByIndex(0), To: gpumap.ByPCI("0000:41:00.0"), Line: 7}},
	}
}

// TestWhatAHostilePeerSaysIsRefused changes a valid job in one respect at a time.
func TestWhatAHostilePeerSaysIsRefused(t *testing.T) {
	if err := sample().Validate(); err != nil {
		t.Fatalf("a job that is in order: %v", err)
	}
	for name, change := range map[string]func(j *Job){
		"another version":                   func(j *Job) { j.Version++ },
		"no processes":                      func(j *Job) { j.Processes = nil },
		"another root":                      func(j *Job) { j.RootPID = 4720 },
		"a negative pid":                    func(j *Job) { j.RootPID, j.Processes[0].PID = -1, -1 },
		"a pid twice":                       func(j *Job) { j.Processes[1].PID = 4711 },
		"too many processes":                func(j *Job) { j.Processes = append(j.Processes, make([]Process, maxProcesses)...) },
		"an escape in a host's name":        func(j *Job) { j.Host.Name = "a\x1b[2J" },
		"a host's name that turns the line": func(j *Job) { j.Host.Name = "a\u202eb" },
		"a line break in a process's name":  func(j *Job) { j.Processes[0].Name = "a\nb" },
		"a name of a megabyte":              func(j *Job) { j.Processes[0].Name = strings.Repeat("a", 1<<20) },
		"a user that is no text":            func(j *Job) { j.Processes[0].User = "\xff" },
		"a negative user":                   func(j *Job) { j.Processes[0].UID = -1 },
		"no threads":                        func(j *Job) { j.Processes[0].Threads = 0 },
		"a number that is no pid":           func(j *Job) { j.Numbers[0] = math.MaxInt },
		"too many numbers":                  func(j *Job) { j.Numbers = make([]int, maxNumbers+1) },
		"more memory than there is":         func(j *Job) { j.Processes[1].PrivateBytes = math.MaxUint64 },
		"more memory than a word counts":    func(j *Job) { j.Processes[0].PrivateBytes, j.Processes[1].PrivateBytes = maxBytes, maxBytes },
		"more shared memory than there is":  func(j *Job) { j.SharedBytes = math.MaxUint64 },
		"more GPU memory than there is":     func(j *Job) { j.Processes[0].MemoryBytes[j.Processes[0].GPUs[0].UUID] = math.MaxUint64 },
		"GPU memory without a GPU":          func(j *Job) { j.Processes[1].MemoryBytes = map[cudackpt.UUID]uint64{{9}: 1} },
		"memory of another GPU":             func(j *Job) { j.Processes[0].MemoryBytes[cudackpt.UUID{9}] = 1 },
		"a GPU without a UUID":              func(j *Job) { j.Processes[0].GPUs[0].UUID = cudackpt.UUID{} },
		"a GPU twice":                       func(j *Job) { j.Processes[0].GPUs = append(j.Processes[0].GPUs, j.Processes[0].GPUs[0]) },
		"more GPUs than a host has": func(j *Job) {
			for n := range maxGPUs + 1 {
				gpu := j.Processes[0].GPUs[0]
				gpu.UUID[5], gpu.UUID[6] = byte(n), byte(n>>8)
				j.Processes[1].GPUs = append(j.Processes[1].GPUs, gpu)
			}
		},
		"an escape in a model":               func(j *Job) { j.Processes[0].GPUs[0].Model = "\x1b]0;" },
		"a model of a megabyte":              func(j *Job) { j.Processes[0].GPUs[0].Model = strings.Repeat("a", 1<<20) },
		"CUDA without a driver":              func(j *Job) { j.DriverVersion = "" },
		"a driver without CUDA":              func(j *Job) { j.Processes = j.Processes[1:]; j.RootPID = 4720 },
		"a relative path":                    func(j *Job) { j.Files[0].Path = "etc/passwd" },
		"a path that climbs":                 func(j *Job) { j.Files[0].Path = "/usr/../etc/passwd" },
		"a path with a slash too many":       func(j *Job) { j.Files[0].Path = "/usr//bin" },
		"a path with a NUL":                  func(j *Job) { j.Files[0].Path = "/usr\x00bin" },
		"a path without end":                 func(j *Job) { j.Files[0].Path = "/" + strings.Repeat("a", maxPath) },
		"no path":                            func(j *Job) { j.Files[0].Path = "" },
		"a path twice":                       func(j *Job) { j.Files[1].Path = j.Files[0].Path },
		"a file of nobody":                   func(j *Job) { j.Files[0].PID = 0 },
		"a file of negative size":            func(j *Job) { j.Files[0].Size = -1 },
		"a file larger than any":             func(j *Job) { j.Files[0].Size = math.MaxInt64 },
		"a device":                           func(j *Job) { j.Files[0].Mode = unix.S_IFBLK | 0o600 },
		"a device that is said to be a pipe": func(j *Job) { j.Files[2].Mode = unix.S_IFCHR | 0o600 },
		"a mode with more bits":              func(j *Job) { j.Files[0].Mode |= 1 << 20 },
		"a build id that is none":            func(j *Job) { j.Files[0].BuildID = "../.." },
		"a build id without end":             func(j *Job) { j.Files[0].BuildID = strings.Repeat("ab", maxBuildID+1) },
		"an escape in the source of a mount": func(j *Job) { j.Files[0].Identity.Source = "\x1b" },
		"too many files":                     func(j *Job) { j.Files = make([]File, maxFiles+1) },
		"a relative directory":               func(j *Job) { j.Directories[0] = "." },
		"a relative mount":                   func(j *Job) { j.Mounts[0].Path = "scratch" },
		"a control group that climbs":        func(j *Job) { j.Cgroup = "/../../etc" },
		"no address":                         func(j *Job) { j.Connections[0].Local = netip.AddrPort{} },
		"an address with a zone":             func(j *Job) { j.Listening[0].Local = netip.MustParseAddrPort("[fe80::1%\x1b]:1") },
		"an option that is none":             func(j *Job) { j.Options.NetworkLock = "; reboot" },
		"a pipe that is none":                func(j *Job) { j.Options.Pipes[0].Name = "fd[1]:/etc/passwd" },
		"an escape in a socket's name":       func(j *Job) { j.Options.Sockets[0] = "/dev/\x1blog" },
		"a feature that is an option":        func(j *Job) { j.Features[0] = "--action-script=/bin/sh" },
		"a pipe of a megabyte":               func(j *Job) { j.Options.Pipes[0].Name = strings.Repeat("a", 1<<20) },
		"a feature of a megabyte":            func(j *Job) { j.Features[0] = strings.Repeat("a", 1<<20) },
		"a rule that selects nothing":        func(j *Job) { j.Map[0].From = gpumap.Selector{} },
		"a rule of a megabyte":               func(j *Job) { j.Map[0].To.PCI = strings.Repeat("0", 1<<20) },
		"too many rules":                     func(j *Job) { j.Map = make([]gpumap.Rule, maxRules+1) },
		"a clock before the boot":            func(j *Job) { j.Host.Monotonic = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			j := sample()
			change(j)
			err := j.Validate()
			if err == nil {
				t.Fatal("it was taken")
			}
			if len(err.Error()) > 1<<14 || strings.ContainsFunc(err.Error(), unprintable) {
				t.Errorf("%q cannot be shown", err)
			}
		})
	}
}

func TestAHostileJudgementIsRefused(t *testing.T) {
	good := func() *Judgement {
		return &Judgement{Version: Version, Host: "gpu-b", Copies: []int{0, 1}, Findings: preflight.Findings{
			{Name: preflight.FindingFiles, Severity: preflight.SeverityOK, PID: 7, Process: "python", Message: "is there", Remedy: "none"},
		}}
	}
	if err := good().Validate(sample()); err != nil {
		t.Fatalf("a judgement that is in order: %v", err)
	}
	for name, change := range map[string]func(j *Judgement){
		"another version":                func(j *Judgement) { j.Version = 0 },
		"an escape in the host's name":   func(j *Judgement) { j.Host = "\x1b" },
		"too many findings":              func(j *Judgement) { j.Findings = make(preflight.Findings, maxFindings+1) },
		"a finding without a name":       func(j *Judgement) { j.Findings[0].Name = "" },
		"a severity that is none":        func(j *Judgement) { j.Findings[0].Severity = "fine" },
		"an escape in a message":         func(j *Judgement) { j.Findings[0].Message = "\x1b[2J" },
		"a line break in a remedy":       func(j *Judgement) { j.Findings[0].Remedy = "a\nb" },
		"a message without end":          func(j *Judgement) { j.Findings[0].Message = strings.Repeat("a", maxMessage+1) },
		"a process that is none":         func(j *Judgement) { j.Findings[0].PID = -1 },
		"a file that is not the job's":   func(j *Judgement) { j.Copies = []int{0, 3} },
		"a file before the first":        func(j *Judgement) { j.Copies = []int{-1} },
		"a file twice":                   func(j *Judgement) { j.Copies = []int{1, 1} },
		"a pipe, which cannot be copied": func(j *Judgement) { j.Copies = []int{2} },
		"more files than the job has":    func(j *Judgement) { j.Copies = []int{0, 1, 2, 3} },
	} {
		t.Run(name, func(t *testing.T) {
			j := good()
			change(j)
			if err := j.Validate(sample()); err == nil {
				t.Error("it was taken")
			}
		})
	}
}

// FuzzJob: whatever the bytes are, a job that is taken can be judged, and what is said about it can
// be shown.
func FuzzJob(f *testing.F) {
	seed := func(change func(j *Job)) {
		j := sample()
		change(j)
		data, err := json.Marshal(j)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	seed(func(*Job) {})
	seed(func(j *Job) { j.Processes = j.Processes[1:]; j.RootPID, j.DriverVersion = 4720, "" })
	seed(func(j *Job) { j.Processes[0].MemoryBytes = nil })
	f.Add([]byte("{}"))
	f.Add([]byte("null"))
	f.Add([]byte(`{"version":1,"processes":[{"pid":1,"threads":1}],"root_pid":1}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		var j Job
		if json.Unmarshal(data, &j) != nil || j.Validate() != nil {
			return
		}
		again := clone(t, &j)
		if err := again.Validate(); err != nil {
			t.Fatalf("what was sent on is refused: %v", err)
		}
		if diff := cmp.Diff(&j, again, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
			t.Fatalf("what was sent on is another job:\n%s", diff)
		}
		findings := append(hostFindings(&j, Host{Architecture: j.Host.Architecture}), connectionFindings(&j, TCPRefuse)...)
		findings = append(findings, socketFindings(&j, TCPKeep, nil, []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:29500")})...)
		findings = append(findings, userFindings(&j, func(int) string { return "root" })...)
		room, err := roomFindings(&j, dir, arriving, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range append(findings, room...) {
			if text := f.String(); strings.ContainsFunc(text, unprintable) {
				t.Fatalf("%q cannot be shown", text)
			}
		}
	})
}

// TestWhatIsFoundCanBeShown: a judgement about a job with unusual names passes the other end's check.
func TestWhatIsFoundCanBeShown(t *testing.T) {
	var findings preflight.Findings
	for n := range 3 {
		findings = append(findings, preflight.Finding{
			Name: preflight.FindingFileMissing, Severity: preflight.SeverityError, Process: "a\x1bb", Message: fmt.Sprintf("%d\nlines\x00 %s", n, strings.Repeat("ä", maxMessage)), Remedy: "\xff",
		})
	}
	j := judged(hookFor(t), "gpu-b", findings)
	if err := j.Validate(sample()); err != nil {
		t.Error(err)
	}
}
