package preflight

import (
	"fmt"
	"slices"
	"strings"

	"cucriu/internal/kit/drivers"
)

// The names of the findings. They are part of the interface: scripts match them, and the user
// overrides an error by its name. topics says what each of them is about.
const (
	// About a machine.
	FindingDriver        = "driver"
	FindingDriverMissing = "driver-missing"
	FindingDriverOld     = "driver-old"
	FindingCriu          = "criu"
	FindingCriuMissing   = "criu-missing"
	FindingCriuVersion   = "criu-version"
	FindingCriuCheck     = "criu-check"
	FindingCUDAPlugin    = "cuda-plugin"
	FindingPluginDir     = "plugin-dir"
	FindingCapabilities  = "capabilities"
	FindingKernel        = "kernel"
	FindingTHP           = "thp"
	// About a job.
	FindingNoProcess          = "no-process"
	FindingZombie             = "zombie"
	FindingKernelThread       = "kernel-thread"
	FindingSession            = "session"
	FindingCUDA               = "cuda"
	FindingCUDAState          = "cuda-state"
	FindingNoGPU              = "no-gpu"
	FindingForkedChild        = "forked-child"
	FindingNVIDIADevice       = "nvidia-device"
	FindingMismatch           = "library-mismatch"
	FindingDifferentGPUs      = "different-gpus"
	FindingCriuInside         = "criu-in-tree"
	FindingTraced             = "traced"
	FindingFrozen             = "frozen"
	FindingStopped            = "stopped"
	FindingIOURing            = "io-uring"
	FindingUnsupportedFile    = "unsupported-file"
	FindingUnsupportedProcess = "unsupported-process"
	FindingFileGuard          = "file-guard"
	FindingMemoryPolicy       = "memory-policy"
	FindingNotRestored        = "not-restored"
	FindingOtherUser          = "other-user"
	FindingNamespace          = "namespace"
	FindingUnrestorable       = "unrestorable"
	FindingSharing            = "shared-gpu-memory"
	FindingPeerMemory         = "peer-memory"
	FindingHostNUMA           = "host-numa-memory"
	FindingGPUInUse           = "gpu-in-use"
	FindingOptions            = "criu-options"
	FindingUNIXSocket         = "unix-socket"
	FindingOutsidePipe        = "outside-pipe"
	FindingParent             = "parent"
	FindingMemoryUnknown      = "memory-unknown"
	FindingStagingMemory      = "staging-memory"
	FindingMemoryCgroup       = "memory-cgroup"
	FindingDiskSpace          = "disk-space"
	FindingImageDirectory     = "image-directory"
	// About an image.
	FindingImage         = "image"
	FindingDriverVersion = "driver-version"
	FindingPIDTaken      = "pid-taken"
	FindingTerminal      = "terminal"
	FindingGPUMap        = "gpu-map"
	FindingGPUMemory     = "gpu-memory"
	// About a migration: see package prepare.
	FindingContainer     = "container"
	FindingArchitecture  = "architecture"
	FindingCPU           = "cpu-features"
	FindingCriuFeature   = "criu-feature"
	FindingClock         = "monotonic-clock"
	FindingHostMemory    = "host-memory"
	FindingFiles         = "files"
	FindingFileMissing   = "file-missing"
	FindingFileDiffers   = "file-differs"
	FindingDirectory     = "directory-missing"
	FindingMounts        = "mounts"
	FindingCgroup        = "cgroup-missing"
	FindingUser          = "user"
	FindingUserNamespace = "user-namespace"
	FindingTCP           = "tcp-connection"
	FindingTCPAddress    = "tcp-address"
	FindingSharedSocket  = "shared-socket"
)

// Kind is what findings of one name have in common.
type Kind struct {
	Name     string
	Severity Severity // of most findings of this kind
	// Cause says what is found, in general and in Markdown: a finding's message names what was found.
	Cause string
	// Remedy is that of every finding of this kind that does not have a remedy of its own.
	Remedy string
	// CanForce says that the user can override an error of this kind, because the finding may be
	// wrong, or the user may know better. With any other error the dump or restore could not succeed.
	CanForce bool
}

const (
	refuses = SeverityError
	warns   = SeverityWarning
	informs = SeverityOK
	forced  = true
)

var topics = []Topic{
	{"**The machine**", []Kind{
		{FindingDriverMissing, refuses, "no NVIDIA driver, no libcuda, or its kernel module is not loaded", "install the NVIDIA driver on this host, or load its kernel module (modprobe nvidia)", !forced},
		{
			FindingDriverOld, refuses, "the driver has no checkpoint API. A warning if it has, and can restore only on the same GPUs",
			"install " + drivers.Checkpoint.Driver + " or newer; " + drivers.GPUPairs.Driver + " to change GPUs", !forced,
		},
		{FindingCriuMissing, refuses, "CRIU is missing or does not run", "install CRIU 4.0 or newer (Debian 12 has 3.17), or specify its path with --criu", !forced},
		{FindingCriuVersion, refuses, "CRIU is older than 4.0, or older than 4.2 and cannot dump a socket of the job on this kernel (TCP on 6.16 and newer). A warning if the version is unknown", "install CRIU 4.2 or newer", forced},
		{FindingCriuCheck, refuses, "`criu check` reports that this kernel lacks features or this process lacks privileges. Checked only by `cucriu check`", "run it as root, and run criu check -v4 for details: a newer kernel or a newer CRIU may be needed", forced},
		{FindingCUDAPlugin, refuses, "CRIU would load its own CUDA plugin beside the hook. The plugin can wait forever for a process that cucriu has stopped, and uses no GPU map. A warning under container engines, and where the `cuda-checkpoint` in CRIU's `PATH` is missing or cucriu's", "point criu's libdir at an empty folder that exists, in criu's configuration file or with --libdir", forced},
		{FindingPluginDir, refuses, "CRIU's `libdir` does not exist, so CRIU fails. A warning under container engines", "`mkdir -p` that folder", !forced},
		{FindingCapabilities, refuses, "CAP_KILL, CAP_SYS_PTRACE or CAP_SYS_ADMIN is missing. A warning if it is CAP_NET_ADMIN, needed for TCP. Checked only by `cucriu check`", "run as root, with these capabilities", forced},
		{FindingTHP, warns, "a warning: transparent huge pages are off, and dump and restore take half as long again. Checked only by `cucriu check`", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled", !forced},
		{FindingDriver, informs, "the driver, its CUDA version, and the number of GPUs", "", !forced},
		{FindingCriu, informs, "CRIU's version and path", "", !forced},
		{FindingKernel, informs, "the kernel's version. A warning if the job comes from a host with a newer one", "", !forced},
	}},
	{"**The job**", []Kind{
		{FindingNoProcess, refuses, "no process has this pid, or it is a thread's", "name a process of the job (ps, or cucriu status)", !forced},
		{FindingZombie, refuses, "the process has ended, and its parent has not reaped it", "name a running process", !forced},
		{FindingKernelThread, refuses, "the pid is that of a kernel thread", "name a process of the job (ps, or cucriu status)", !forced},
		{FindingSession, refuses, "processes of the tree are suspended, or another `cucriu dump` is about to end them. A warning if another dump, suspend or resume is in progress: a dump waits for it", "`cucriu resume -p PID`", !forced},
		{FindingImageDirectory, refuses, "the directory is not empty, is a mount point or a file, or cannot be made. A dump never overwrites another", "name another directory", !forced},
		{FindingForkedChild, informs, "children of a CUDA process hold its devices: [more](#forked-child)", "nothing needs to be done: a dump removes them from the child", forced},
		{FindingNVIDIADevice, refuses, "a process holds NVIDIA devices, but no CUDA state that could be saved: [more](#nvidia-device)", "end it, or let it close the devices, before the dump", forced},
		{FindingSharing, refuses, "processes share device memory, which the driver never restores: [more](#shared-gpu-memory)", "start the job with cucriu run --dir, whose library puts shared memory up again; or let the processes close what they have imported before the dump (cuIpcCloseMemHandle, cuMemRelease; in PyTorch, send tensors through the host); if it is NCCL's, start the job with NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1 in its environment", forced},
		{FindingPeerMemory, refuses, "one GPU accesses a large allocation or a pool on another: [more](#peer-memory)", "`expandable_segments:True`, or one GPU for each process", forced},
		{FindingHostNUMA, refuses, "a process has driver memory on a NUMA node of the host (`CU_MEM_LOCATION_TYPE_HOST_NUMA`), which the driver never restores. Found with driver 580.159.04, for processes on one GPU", "run the job without it, for example with pinned host memory", forced},
		{
			FindingGPUInUse, refuses, "the job uses several GPUs, and another program uses one of them: [more](#gpu-in-use)",
			"dump when no other program uses the job's GPUs; override this if its kernels wait for none on other GPUs", forced,
		},
		{FindingDifferentGPUs, refuses, "the processes of the tree see different GPUs, so that no restore could map them together", "dump them as trees of their own, or suspend them one by one", !forced},
		{FindingNoGPU, refuses, "a CUDA process sees no GPU device file, or a GPU that is not initialized", "make the /dev/nvidia* nodes of its GPUs visible in its mount namespace", !forced},
		{FindingMismatch, refuses, "a process has a different libcuda mapped than the one that cucriu would use, as with `cuda-compat` in a container", "name the job's library in driver.library of the configuration", !forced},
		{FindingCUDAState, refuses, "a CUDA process is locked, checkpointed or failed, and not because of cucriu: `cucriu unlock` for a locked one, the tool that did it or `cucriu resume --force` for a checkpointed one, an image for a failed one. Or the driver does not report its state", "look for Xid messages in the kernel log (dmesg)", !forced},
		{FindingTraced, refuses, "a debugger traces a process or thread", "detach it first", !forced},
		{FindingFrozen, refuses, "a control group has frozen processes of the tree. A container engine names the group to CRIU, and the dump thaws it temporarily", "thaw it first, or name the group: `--freeze-cgroup DIR`", !forced},
		{FindingCriuInside, refuses, "CRIU, or the program that would start it, is part of the tree", "start the dump from outside the tree, or dump a part of the tree that it is not in", !forced},
		{FindingIOURing, refuses, "a process has an io_uring: [more](#io-uring)", "start the job with cucriu run --no-checkpoints: libraries do without an io_uring then", forced},
		{FindingUnsupportedFile, refuses, "an open or mapped file of a kind that CRIU cannot dump: [more](#unsupported-file)", "let the job close it, or run it without", forced},
		{FindingFileGuard, refuses, "a process has a write lease on a file (`F_SETLEASE`) or answers fanotify permission events: opening files would end or wait for it", "give that up before", !forced},
		{FindingUnsupportedProcess, refuses, "the main thread has ended while others run, or the process shares memory, root or working directory with another one (`CLONE_VM`, `CLONE_FS`)", "let the main thread wait for the others", forced},
		{FindingUnrestorable, refuses, "a state that CRIU dumps but cannot restore: [more](#unrestorable)", "let the job close it", forced},
		{FindingContainer, refuses, "the root is in a mount namespace of its own, or belongs to a long job. Checked by `cucriu check`, `dump` and `migrate`, not by an engine's dump", "let the engine dump or move the container (runc checkpoint, podman container checkpoint); for a long job, see cucriu jobs --help", forced},
		{FindingNamespace, refuses, "a process is in a different namespace than the root (bubblewrap, Apptainer, `unshare`), or the root is in a user namespace without a mount namespace of its own. If the root is in a mount or network namespace of its own, processes below it may be in others of these two kinds", "run the job without it (bubblewrap, Apptainer and unshare make namespaces), or start the whole job inside of it", forced},
		{FindingMemoryPolicy, warns, "a warning: a NUMA memory policy (`numactl`) of a job without CUDA, which CRIU does not restore", "run the restore under the same numactl", !forced},
		{FindingNotRestored, warns, "a warning: what a program can miss after a restore: the extended attributes of a removed file, or free memory, because all that is locked on fault (`mlock2`) takes memory then", "", !forced},
		{FindingOtherUser, refuses, "a process belongs to another user or group, and CRIU can dump it only with CAP_SYS_RESOURCE", "add it to the container or service (--cap-add SYS_RESOURCE), or run the job as the user who dumps it", forced},
		{FindingUNIXSocket, refuses, "a UNIX stream connection to a process outside the tree, or one whose client has ended, or sent data, before it was accepted: [more](#unix-socket)", "let the job close the connection, or dump the tree that holds both ends; if it is the job's output (systemd, journald), send that to a file", forced},
		{FindingOutsidePipe, warns, "a warning: a pipe connects the job to a process outside the tree: [more](#outside-pipe)", "let the job use a file instead", !forced},
		{FindingParent, refuses, "a program of the root's process group has started it (torchrun, Python's subprocess), or processes of its session or group have left the tree because their parents ended: these would stay behind. A warning if they do not use CUDA", "dump that program (-t) to take the whole job", forced},
		{FindingCUDA, informs, "the GPUs that a CUDA process sees, and the memory that it holds on them", "", !forced},
		{FindingStopped, informs, "the process was already stopped, and stays stopped", "", !forced},
		{FindingOptions, informs, "the CRIU options that the tree needs: `cucriu dump` sets them; pass them to plain `criu dump` yourself", "", !forced},
	}},
	{"**Memory and disk**", []Kind{
		{FindingStagingMemory, refuses, "too little host memory for the content of the GPUs, and for the image if that is on tmpfs", "free memory; dump to a disk", forced},
		{FindingMemoryCgroup, refuses, "the same, in a control group. Inside the group, as in a batch job, CRIU and cucriu take 34 MiB more, and 1 MiB for each core (up to 32)", "raise the limit, for the restore too", forced},
		{FindingDiskSpace, refuses, "too little space for the image. A warning under container engines", "free space, or dump to another file system", forced},
		{FindingMemoryUnknown, warns, "a warning: NVML does not report how much GPU memory a process holds. The memory needed for a restore is measured during the checkpoint, and assumed in full for every GPU that the process sees", "make sure that this host has enough memory for the content of its GPUs; in a virtual machine or container, process accounting may have to be enabled in the driver", !forced},
	}},
	{"**The image**", []Kind{
		{FindingImage, refuses, "what the image contains; an error if there is none, or it is incomplete or damaged", "copy the image again from its source, or restore another one", !forced},
		{FindingPIDTaken, refuses, "a process of this host uses a pid, process group or session ID of the image; often it is the job itself. Images with a pid namespace of their own need none", "end that process (if it is the job itself, only to go back to this image), or restore in a pid namespace of its own (unshare --pid --fork --mount-proc cucriu restore --foreground -D DIR)", !forced},
		{FindingTerminal, refuses, "the job has a terminal, but the restore has none on its standard input", "restore from a terminal, or a new one: script -qc 'cucriu restore --foreground …' /dev/null", !forced},
		{FindingDriverVersion, refuses, "the image was made with another driver version, whose state is part of it", "restore on a host with the same driver version", !forced},
		{FindingGPUMap, refuses, "too few GPUs, another model, or contradicting rules of the [GPU map](configuration.md#the-gpu-map)", "`cucriu map -D DIR` explains the plan", !forced},
		{FindingGPUMemory, refuses, "a GPU has too little free memory. A process that runs out of it in a restore is lost", "free memory on it, or map to another GPU; see nvidia-smi on this host", !forced},
	}},
	{"**Migration** (and files at a restore)", []Kind{
		{FindingArchitecture, refuses, "the destination's processor has another architecture", "use another host", !forced},
		{FindingCPU, refuses, "the destination's processor lacks instructions or registers, named in the message. A program that uses them ends with SIGILL", "use another host. *Can be forced* if the job uses none of them", forced},
		{FindingCriuFeature, refuses, "the destination's CRIU or kernel lacks what the job needs: time namespaces (long jobs), or nftables (TCP, without iptables)", "install the versions that the source has", !forced},
		{FindingHostMemory, refuses, "a host has too little memory. A restore leaves what other restores under way still need. In a migration both hosts need room for the content of the job's GPUs, the destination also for the job's own memory, and, in `/dev/shm`, for the image", "free memory, or name a directory on a disk with `--stage`", forced},
		{FindingFileMissing, refuses, "a file that the job executes, or has open or mapped, does not exist: [more](#file-missing-and-file-differs)", "put it there, use a shared file system, or `--copy-files missing`", !forced},
		{FindingFileDiffers, refuses, "a different file has that name: [more](#file-missing-and-file-differs)", "as above, or `--copy-files changed`; `cucriu restore --cut-logs` for logs that have grown. *Can be forced* in a migration", forced},
		{FindingDirectory, refuses, "a working directory, root, or open directory of the job does not exist, or the directory into which a file is to be copied. Nothing is copied through a symbolic link", "create it", !forced},
		{FindingMounts, warns, "a warning: the job has mounts of its own, whose files are not checked", "make sure that the job has the same mounts there", !forced},
		{FindingCgroup, warns, "a warning: the job's control group does not exist there. The job will run in the receiver's", "create the group first", !forced},
		{FindingUser, warns, "a warning: a user of the job has another name there, or none. The numeric ID is kept", "", !forced},
		{FindingUserNamespace, refuses, "the job is in a user namespace, and the destination does not allow them", "`sysctl user.max_user_namespaces=10000`", !forced},
		{FindingClock, warns, "a warning: the job's monotonic clock jumps, so programs that wait for a point in time on it may wait too long, or not at all", "use `cucriu run`, whose jobs have clocks of their own", !forced},
		{FindingTCP, refuses, "TCP connections to other programs, whose other ends do not move: see [migration](migration.md#tcp-connections)", "`--tcp close` or `keep`", !forced},
		{FindingTCPAddress, refuses, "a program uses the port on which the job listens (at a restore, too), or the host lacks the job's address; at a dump, the job is bound to an address that its own host lacks (it was lost, or `IP_FREEBIND`). A warning with `--tcp keep`", "end that program, or give the host the address", forced},
		{FindingSharedSocket, refuses, "the job has a UNIX socket in a directory that both hosts see. CRIU claims its path during the restore there, while the job may still have to be rolled back", "bind it in a directory that is local to its host, such as `/tmp`, or dump the job and restore it there", !forced},
		{FindingFiles, informs, "how many files of the job exist there, how many are the very same file, and how many are copied", "", !forced},
	}},
}

// Topic is what some kinds of findings are about.
type Topic struct {
	Title string
	Kinds []Kind
}

// Topics returns all kinds of findings.
func Topics() []Topic { return slices.Clone(topics) }

// kindOf returns the kind with this name; the zero kind, an error, if there is none.
func kindOf(name string) Kind {
	for _, topic := range topics {
		if i := slices.IndexFunc(topic.Kinds, func(k Kind) bool { return k.Name == name }); i >= 0 {
			return topic.Kinds[i]
		}
	}
	return Kind{Name: name, Severity: SeverityError}
}

// Forceable returns the names of the errors that the user can override.
func Forceable() []string {
	var names []string
	for _, topic := range topics {
		for _, k := range topic.Kinds {
			if k.CanForce {
				names = append(names, k.Name)
			}
		}
	}
	return names
}

// CheckForce refuses names of findings that cannot be overridden.
func CheckForce(names []string) error {
	for _, name := range names {
		kind := kindOf(name)
		if kind.Severity == SeverityWarning && !kind.CanForce {
			return fmt.Errorf("%q is only a warning: leave out --force %[1]s", name)
		}
		if !kind.CanForce {
			return fmt.Errorf("%q cannot be forced: name one of %s", name, strings.Join(Forceable(), ", "))
		}
	}
	return nil
}
