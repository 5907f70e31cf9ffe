package preflight

import (
	"fmt"
	"slices"
	"strings"
)

// The names of the findings. They are part of the interface: scripts match them, and the user
// overrides an error by its name.
const (
	// About a machine.
	FindingDriver        = "driver"         // the driver and its version
	FindingDriverMissing = "driver-missing" // no NVIDIA driver, or no libcuda
	FindingDriverOld     = "driver-old"     // the library lacks the checkpoint API, or GPU pairs
	FindingCriu          = "criu"           // criu's version and path
	FindingCriuMissing   = "criu-missing"   // no criu, or one that does not run
	FindingCriuVersion   = "criu-version"   // criu is older than 4.0, or too old for this kernel
	FindingCriuCheck     = "criu-check"     // criu says that this kernel is not enough for it
	FindingCUDAPlugin    = "cuda-plugin"    // criu would load its own CUDA plugin beside the hook
	FindingPluginDir     = "plugin-dir"     // criu's plugin folder is named and does not exist
	FindingCapabilities  = "capabilities"   // this process lacks a capability that is needed
	FindingKernel        = "kernel"         // the kernel's version
	FindingTHP           = "thp"            // transparent huge pages are not available
	// About a job.
	FindingNoProcess          = "no-process"          // the pid is nobody's, or that of a thread
	FindingZombie             = "zombie"              // the root has ended and is not reaped
	FindingKernelThread       = "kernel-thread"       // the root is a thread of the kernel
	FindingSession            = "session"             // processes of the tree are suspended, or in another dump
	FindingCUDA               = "cuda"                // a CUDA process and what it holds
	FindingCUDAState          = "cuda-state"          // a CUDA process is not running, or the driver cannot tell
	FindingNoGPU              = "no-gpu"              // a CUDA process that sees no GPU
	FindingForkedChild        = "forked-child"        // children of CUDA processes that hold its devices, and cannot use them
	FindingNVIDIADevice       = "nvidia-device"       // another process with NVIDIA devices but without CUDA state
	FindingMismatch           = "library-mismatch"    // the process uses another libcuda than the one that would drive it
	FindingDifferentGPUs      = "different-gpus"      // the processes of the tree see different GPUs
	FindingCriuInside         = "criu-in-tree"        // criu is in the tree that it is to dump
	FindingTraced             = "traced"              // traced by a debugger
	FindingFrozen             = "frozen"              // frozen by its control group
	FindingStopped            = "stopped"             // stopped by SIGSTOP, and stays so
	FindingIOURing            = "io-uring"            // an open io_uring
	FindingUnsupportedFile    = "unsupported-file"    // something open or mapped of a kind that criu cannot dump
	FindingUnsupportedProcess = "unsupported-process" // a process of a kind that criu cannot dump
	FindingMemoryPolicy       = "memory-policy"       // a NUMA memory policy, which a restore does not bring back
	FindingOtherUser          = "other-user"          // a process of another user, which criu lacks the capability to dump
	FindingNamespace          = "namespace"           // a process in another namespace than the root
	FindingUnrestorable       = "unrestorable"        // what criu puts into an image and never restores
	FindingNCCL               = "nccl-ipc"            // NCCL, which may share device memory between processes
	FindingSharing            = "shared-gpu-memory"   // memory of the driver that processes share
	FindingPeerMemory         = "peer-memory"         // one process on several GPUs, which may have peer access to large allocations
	FindingHostNUMA           = "host-numa-memory"    // memory of the driver in a NUMA node of the host
	FindingOptions            = "criu-options"        // the options of criu that the tree needs
	FindingUNIXSocket         = "unix-socket"         // a UNIX socket whose other end is outside of the tree, or missing
	FindingOutsidePipe        = "outside-pipe"        // a pipe whose other end is outside of the tree
	FindingMemoryUnknown      = "memory-unknown"      // how much GPU memory a process holds is not known
	FindingStagingMemory      = "staging-memory"      // this host lacks memory for what is on the GPUs
	FindingMemoryCgroup       = "memory-cgroup"       // a control group lacks memory for it
	FindingDiskSpace          = "disk-space"          // the image directory's file system lacks space
	FindingImageDirectory     = "image-directory"     // a dump cannot make this directory its image
	// About an image.
	FindingImage         = "image"          // what the image holds
	FindingDriverVersion = "driver-version" // the image was made with another driver
	FindingPIDTaken      = "pid-taken"      // a pid that the image needs is in use
	FindingTerminal      = "terminal"       // the job has a terminal, and the restore has none
	FindingGPUMap        = "gpu-map"        // the image's GPUs cannot be mapped to this host's
	FindingGPUMemory     = "gpu-memory"     // a GPU has too little free memory
	// About a migration: see package prepare.
	FindingContainer     = "container"         // a container engine has started the job, and must dump it
	FindingArchitecture  = "architecture"      // the other host's processor runs other programs
	FindingCPU           = "cpu-features"      // the other host's processor lacks instructions
	FindingCriuFeature   = "criu-feature"      // criu or the kernel there lacks something that this job needs
	FindingClock         = "monotonic-clock"   // the monotonic clock jumps
	FindingHostMemory    = "host-memory"       // a host has too little memory for the job on its way
	FindingFiles         = "files"             // the files of the job that are there
	FindingFileMissing   = "file-missing"      // a file is not there
	FindingFileDiffers   = "file-differs"      // another file is there by its name
	FindingDirectory     = "directory-missing" // a working, root or open directory is not there
	FindingMounts        = "mounts"            // the job has mounts of its own
	FindingCgroup        = "cgroup-missing"    // its control group is not there
	FindingUser          = "user"              // a user has another name there
	FindingUserNamespace = "user-namespace"    // the other host makes no user namespaces
	FindingTCP           = "tcp-connection"    // TCP connections of the job
	FindingTCPAddress    = "tcp-address"       // an address or port that a socket needs is not to be had
)

// Forceable returns the names of the errors that the user can override: those where the finding
// may be wrong, or where the user may know better. With any of the others, the dump or restore
// could not succeed.
func Forceable() []string {
	return []string{
		FindingCriuVersion, FindingCriuCheck, FindingCUDAPlugin, FindingCapabilities, FindingForkedChild, FindingNVIDIADevice, FindingIOURing, FindingUnsupportedFile, FindingUnsupportedProcess, FindingOtherUser, FindingNamespace, FindingUnrestorable, FindingUNIXSocket, FindingNCCL, FindingSharing, FindingPeerMemory, FindingHostNUMA, FindingStagingMemory, FindingMemoryCgroup, FindingDiskSpace,
		FindingContainer, FindingCPU, FindingHostMemory, FindingFileDiffers, FindingTCPAddress,
	}
}

// CheckForce refuses names of findings that cannot be overridden.
func CheckForce(names []string) error {
	for _, name := range names {
		if !slices.Contains(Forceable(), name) {
			return fmt.Errorf("%q cannot be forced: name one of %s", name, strings.Join(Forceable(), ", "))
		}
	}
	return nil
}
