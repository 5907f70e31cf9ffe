package prepare

import (
	"net/netip"
	"time"

	"cucriu/cudackpt"
	"cucriu/hooks/config"
	"cucriu/hooks/image"
)

// Job describes a job at the source: all that the destination needs to know to judge whether the
// job can come.
type Job struct {
	Host Host `json:"host"`
	// RootPID and the pids of the processes are those of the source.
	RootPID   int       `json:"root_pid"`
	Processes []Process `json:"processes"`
	// DriverVersion is the source's, such as 580.159.04; empty if no process uses CUDA.
	DriverVersion string `json:"driver_version,omitempty"`
	// Own says which namespaces are the tree's own: not those of the program that describes it.
	Own Namespaces `json:"own"`
	// Numbers are those that must be free at the destination: of processes, threads, process
	// groups and sessions. There are none if the tree has a pid namespace of its own.
	Numbers []int `json:"numbers,omitempty"`
	// SharedBytes is the largest shared memory of a process, which several of them may have in
	// common.
	SharedBytes uint64   `json:"shared_bytes,omitempty"`
	Files       []File   `json:"files,omitempty"`
	Directories []string `json:"directories,omitempty"` // working, root and open directories
	// SocketDirectories are those in which the job has UNIX sockets.
	SocketDirectories []Directory  `json:"socket_directories,omitempty"`
	UNIXSockets       []UNIXSocket `json:"unix_sockets,omitempty"`
	Mounts            []Mount      `json:"mounts,omitempty"` // of its own mount namespace, where the source has no such mount
	Cgroup            string       `json:"cgroup,omitempty"` // of the root, in cgroup v2
	Connections       []Connection `json:"connections,omitempty"`
	Listening         []Listener   `json:"listening,omitempty"`
	// Options are what criu must be told for this tree, and what it finds outside of it.
	Options image.Options `json:"options"`
	// Features are criu's names of what it must be able to do at the destination.
	Features []string `json:"features,omitempty"`
	// Map replaces gpus.map of the destination's configuration, if it is not empty.
	Map []config.Rule `json:"map,omitempty"`
}

// Host is what a job may rely on of the machine that it runs on.
type Host struct {
	Name         string        `json:"name"`
	BootID       string        `json:"boot_id"`
	Architecture string        `json:"architecture"` // as Go names it
	Kernel       string        `json:"kernel"`
	Criu         string        `json:"criu"` // its version; empty if there is none
	CPU          CPU           `json:"cpu"`
	Monotonic    time.Duration `json:"monotonic_ns"` // CLOCK_MONOTONIC
}

// CPU is a model of processor and those of its features that programs use.
type CPU struct {
	Model    string   `json:"model"`
	Features []string `json:"features"`
}

// Namespaces says which kinds of namespaces are meant.
type Namespaces struct {
	PID     bool `json:"pid,omitempty"`
	Mount   bool `json:"mount,omitempty"`
	Network bool `json:"network,omitempty"`
	User    bool `json:"user,omitempty"`
	Time    bool `json:"time,omitempty"`
}

// Process is a process of a job.
type Process struct {
	PID     int    `json:"pid"`
	Name    string `json:"name"`
	UID     int    `json:"uid"` // effective
	RealUID int    `json:"real_uid"`
	User    string `json:"user,omitempty"` // its name at the source; empty if it has none
	Threads int    `json:"threads"`
	// PrivateBytes is the private memory that criu writes into the image.
	PrivateBytes uint64 `json:"private_bytes"`
	// GPUs are those that it sees, in the driver's order; none if it does not use CUDA.
	GPUs []cudackpt.GPU `json:"gpus,omitempty"`
	// MemoryBytes is what it holds on each GPU. It is nil if that is not known.
	MemoryBytes map[cudackpt.UUID]uint64 `json:"memory_bytes,omitempty"`
}

// File is a regular file or a named pipe that the job has open or mapped, or executes. Paths are
// as the job sees them.
type File struct {
	Path string `json:"path"`
	PID  int    `json:"pid"` // of the first process that uses it
	Pipe bool   `json:"pipe,omitempty"`
	Size int64  `json:"size"` // bytes
	Mode uint32 `json:"mode"` // type and permissions, as stat(2) has them
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
	// BuildID is that of a mapped ELF file, in hexadecimal.
	BuildID string `json:"build_id,omitempty"`
	// Written says that the job has it open for writing, or has mapped it so. AppendOnly says
	// that it does nothing else with it: such a file may have any size.
	Written    bool `json:"written,omitempty"`
	AppendOnly bool `json:"append_only,omitempty"`
	// Shared says that a process outside of the job has it open for writing.
	Shared   bool     `json:"shared,omitempty"`
	Identity Identity `json:"identity"`
}

// Identity tells whether a file of one host is the very file of another, on a file system that
// both have mounted.
type Identity struct {
	FileSystem string    `json:"file_system"` // its type, such as nfs4
	Source     string    `json:"source"`      // what is mounted, such as server:/export
	Device     uint64    `json:"device"`
	Inode      uint64    `json:"inode"`
	Modified   time.Time `json:"modified"`
}

// Mount is a mount that only the job's mount namespace has.
type Mount struct {
	Path       string `json:"path"`
	FileSystem string `json:"file_system"`
	Source     string `json:"source"`
}

// Connection is a TCP connection of the job.
type Connection struct {
	PID    int            `json:"pid"`
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
	// Inside says that the job has both ends, on the loopback interface or in a network namespace
	// of its own.
	Inside bool `json:"inside,omitempty"`
}

// Listener is a listening TCP socket of the job.
type Listener struct {
	PID   int            `json:"pid"`
	Local netip.AddrPort `json:"local"`
}

// HostBytes is what criu writes into the image of the job, at least.
func (j *Job) HostBytes() uint64 {
	sum := j.SharedBytes
	for _, p := range j.Processes {
		sum += p.PrivateBytes
	}
	return sum
}

// GPUBytes is what the job holds on its GPUs, as far as that is known.
func (j *Job) GPUBytes() uint64 {
	var sum uint64
	for _, p := range j.Processes {
		for _, size := range p.MemoryBytes {
			sum += size
		}
	}
	return sum
}

// nameOf returns the name of a process; empty if it is none of the job's.
func (j *Job) nameOf(pid int) string {
	for _, p := range j.Processes {
		if p.PID == pid {
			return p.Name
		}
	}
	return ""
}

// manifest is the job as an image of it would have it. It is nil if no process uses CUDA.
func (j *Job) manifest() *image.Manifest {
	m := image.Manifest{DriverVersion: j.DriverVersion, RootPID: j.RootPID}
	for _, p := range j.Processes {
		if len(p.GPUs) > 0 {
			m.Processes = append(m.Processes, image.Process{PID: p.PID, Name: p.Name, GPUs: p.GPUs, MemoryBytes: p.MemoryBytes})
		}
	}
	if len(m.Processes) == 0 {
		return nil
	}
	return &m
}
