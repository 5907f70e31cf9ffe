package prepare

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/hooks/config"
	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
)

// sample is a job that has some of everything.
func sample() *Job {
	gpu := cudackpt.GPU{UUID: cudackpt.UUID{1, 2, 3}, Model: "NVIDIA H200", PCIBusID: "0000:41:00.0"}
	return &Job{
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
		Map:         []config.Rule{{From: config.Selector{Index: new(0)}, To: config.Selector{PCI: "0000:41:00.0"}, Line: 7}},
	}
}

// TestSizesCountsAndPathsOfAJobAreChecked changes a valid job in one respect at a time.
func TestSizesCountsAndPathsOfAJobAreChecked(t *testing.T) {
	if err := sample().Validate(); err != nil {
		t.Fatalf("a job that is in order: %v", err)
	}
	for name, change := range map[string]func(j *Job){
		"no processes":                     func(j *Job) { j.Processes = nil },
		"too many processes":               func(j *Job) { j.Processes = append(j.Processes, make([]Process, maxProcesses)...) },
		"too many numbers":                 func(j *Job) { j.Numbers = make([]int, maxNumbers+1) },
		"more memory than there is":        func(j *Job) { j.Processes[1].PrivateBytes = math.MaxUint64 },
		"more memory than a word counts":   func(j *Job) { j.Processes[0].PrivateBytes, j.Processes[1].PrivateBytes = maxBytes, maxBytes },
		"more shared memory than there is": func(j *Job) { j.SharedBytes = math.MaxUint64 },
		"more GPU memory than there is":    func(j *Job) { j.Processes[0].MemoryBytes[j.Processes[0].GPUs[0].UUID] = math.MaxUint64 },
		"memory of another GPU":            func(j *Job) { j.Processes[0].MemoryBytes[cudackpt.UUID{9}] = 1 },
		"a GPU without a UUID":             func(j *Job) { j.Processes[0].GPUs[0].UUID = cudackpt.UUID{} },
		"a GPU twice":                      func(j *Job) { j.Processes[0].GPUs = append(j.Processes[0].GPUs, j.Processes[0].GPUs[0]) },
		"more GPUs than a host has": func(j *Job) {
			for n := range maxGPUs + 1 {
				gpu := j.Processes[0].GPUs[0]
				gpu.UUID[5], gpu.UUID[6] = byte(n), byte(n>>8)
				j.Processes[1].GPUs = append(j.Processes[1].GPUs, gpu)
			}
		},
		"CUDA without a driver":         func(j *Job) { j.DriverVersion = "" },
		"a relative path":               func(j *Job) { j.Files[0].Path = "etc/passwd" },
		"a path that climbs":            func(j *Job) { j.Files[0].Path = "/usr/../etc/passwd" },
		"a path with a slash too many":  func(j *Job) { j.Files[0].Path = "/usr//bin" },
		"a path with a NUL":             func(j *Job) { j.Files[0].Path = "/usr\x00bin" },
		"a path that JSON would change": func(j *Job) { j.Files[0].Path = "/usr/\xff" },
		"too many features":             func(j *Job) { j.Features = make([]string, maxFeatures+1) },
		"a path without end":            func(j *Job) { j.Files[0].Path = "/" + strings.Repeat("a", unix.PathMax) },
		"no path":                       func(j *Job) { j.Files[0].Path = "" },
		"a file of negative size":       func(j *Job) { j.Files[0].Size = -1 },
		"a file larger than any":        func(j *Job) { j.Files[0].Size = math.MaxInt64 },
		"too many files":                func(j *Job) { j.Files = make([]File, maxFiles+1) },
		"a relative directory":          func(j *Job) { j.Directories[0] = "." },
		"a relative mount":              func(j *Job) { j.Mounts[0].Path = "scratch" },
		"a control group that climbs":   func(j *Job) { j.Cgroup = "/../../etc" },
		"an option that is none":        func(j *Job) { j.Options.NetworkLock = "; reboot" },
		"a pipe that is none":           func(j *Job) { j.Options.Pipes[0].Name = "fd[1]:/etc/passwd" },
		"a rule that selects nothing":   func(j *Job) { j.Map[0].From = config.Selector{} },
		"too many rules":                func(j *Job) { j.Map = make([]config.Rule, maxRules+1) },
	} {
		t.Run(name, func(t *testing.T) {
			j := sample()
			change(j)
			err := j.Validate()
			if err == nil {
				t.Fatal("it was taken")
			}
			if len(err.Error()) > 1<<12 || strings.ContainsFunc(err.Error(), func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%q cannot be shown", err)
			}
		})
	}
}

func TestAJudgementIsBounded(t *testing.T) {
	good := func() *Judgement {
		return &Judgement{Host: "gpu-b", Copies: []int{0, 1}, Findings: preflight.Findings{
			{Name: preflight.FindingFiles, Severity: preflight.SeverityOK, PID: 7, Process: "python", Message: "is there", Remedy: "none"},
		}}
	}
	if err := good().Validate(sample()); err != nil {
		t.Fatalf("a judgement that is in order: %v", err)
	}
	for name, change := range map[string]func(j *Judgement){
		"too many findings":            func(j *Judgement) { j.Findings = make(preflight.Findings, maxFindings+1) },
		"a file that is not the job's": func(j *Judgement) { j.Copies = []int{0, 3} },
		"a file before the first":      func(j *Judgement) { j.Copies = []int{-1} },
		"more files than the job has":  func(j *Judgement) { j.Copies = []int{0, 1, 2, 3} },
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

// FuzzJob: whatever the bytes are, a job that is taken can be judged.
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
		hostFindings(&j, Host{Architecture: j.Host.Architecture})
		connectionFindings(&j, TCPRefuse)
		socketFindings(&j, TCPKeep, nil, []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:29500")})
		userFindings(&j, func(int) string { return "root" })
		if _, err := roomFindings(&j, dir, arriving, 1); err != nil {
			t.Fatal(err)
		}
	})
}

// TestWhatIsFoundCanBeShown, whatever the names are.
func TestWhatIsFoundCanBeShown(t *testing.T) {
	var findings preflight.Findings
	for n := range 3 {
		findings = append(findings, preflight.Finding{
			Name: preflight.FindingFileMissing, Severity: preflight.SeverityError, Process: "a\x1bb", Message: fmt.Sprintf("%d\nlines\x00 %s", n, strings.Repeat("ä", maxMessage)), Remedy: "\xff",
		})
	}
	j := Judged(hookFor(t), "gpu-b", findings)
	for _, f := range j.Findings {
		if text := f.Process + f.Message + f.Remedy; len(text) > 3*maxMessage || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q cannot be shown", text)
		}
	}
}
