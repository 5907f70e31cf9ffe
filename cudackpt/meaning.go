package cudackpt

import (
	"fmt"
	"os"

	"cucriu/internal/kit/drivers"
)

// meaning is what a result means for one call, and what to do about it.
type meaning struct{ means, remedy string }

// cause is what a meaning depends on. One CUresult stands for very different things in different
// calls. The call is "" for what a result means in every call that is not listed for it.
type cause struct {
	call   string
	result Result
	gone   bool // the target is dead
}

func (e *Error) meaning() meaning {
	gone := e.Gone && (e.Result == ResultOperatingSystem || e.Result == ResultNotInitialized)
	if e.Result == ResultNotPermitted && os.Geteuid() == 0 {
		return meaning{"the driver does not permit it, although root asks: CAP_SYS_PTRACE may be missing", "in a container, start it with --privileged or --cap-add SYS_PTRACE"}
	}
	if m, known := meanings[cause{e.Call, e.Result, gone}]; known {
		return m
	}
	return meanings[cause{"", e.Result, gone}]
}

// meanings says what the driver (580) was seen to do.
var meanings = map[cause]meaning{
	{callLock, ResultNotReady, false}: {
		"GPU work was still in flight when the timeout expired; the process is running as before",
		"give the lock more time; lock processes that wait for each other (NCCL ranks) at the same time",
	},
	{callLock, ResultIllegalState, false}:       {"the process is not running but locked, checkpointed or failed already", "read its state; unlock it, or restore and unlock it, first"},
	{callCheckpoint, ResultIllegalState, false}: {"the process is not locked", "lock it first"},
	{callCheckpoint, ResultNotSupported, false}: {
		"the process uses something that the driver cannot checkpoint: managed memory (cudaMallocManaged), MIG, MPS or graphics",
		"run it without these: it cannot be checkpointed with them",
	},
	{callCheckpoint, ResultOutOfMemory, false}: {
		"there is not enough host memory for the content of its GPUs",
		"free host memory, or raise its cgroup's memory limit by as much as it holds on its GPUs",
	},
	{callCheckpoint, ResultOperatingSystem, true}: {"the process died before its checkpoint was complete", "find out what killed it: the out-of-memory killer, or a thread that synchronized with the GPU (SIGSEGV)"},
	{callRestore, ResultIllegalState, false}:      {"the process is not checkpointed", "read its state: if it has already been restored, unlock it"},
	{callRestore, ResultInvalidValue, false}: {
		"the GPU map was refused, and nothing was restored: the old side must be exactly the GPUs that it could see when it was checkpointed, used or not, and the new side different GPUs that it can see now",
		"restore it with a map that keeps this, or with none; if every map is refused, the process holds memory that this driver never restores: CUDA IPC memory (NCCL over P2P or SHM), or " +
			fmt.Sprint(drivers.For("").FabricLeast>>20) + " MiB and more that another GPU accesses",
	},
	{callRestore, ResultNotSupported, false}: {
		"the process can see fewer GPUs than when it was checkpointed, or GPUs of another type, or it holds CUDA IPC memory (NCCL over P2P or SHM); nothing was restored",
		"make as many /dev/nvidia* nodes of the same GPU type visible in its mount namespace and restore it again; if it holds IPC memory, no restore will succeed",
	},
	{callRestore, ResultOutOfMemory, false}: {
		"there was not enough free memory on the GPUs, and the driver cannot recover from that: every further restore of this process fails, and its GPU state is lost",
		"kill it and restore it from an image; before a restore, check that there is enough free GPU memory",
	},
	{callRestore, ResultOperatingSystem, true}: {"the process died before it was restored", "restore it from an image"},
	{callRestore, ResultOperatingSystem, false}: {
		"the process cannot be reached; if its state is checkpointed, an earlier restore ran out of GPU memory and its GPU state is lost",
		"if there is no such process, check the pid; if it is checkpointed, kill it and restore it from an image",
	},
	{callUnlock, ResultIllegalState, false}: {"the process is not locked", "read its state: restore it first if it is checkpointed; if it is running there is nothing to do"},
	{"", ResultInvalidValue, false}:         {"the driver does not accept the arguments", "report this with the driver version: it should have been detected earlier"},
	{"", ResultOutOfMemory, false}:          {"the driver ran out of memory", "free memory on the host and on its GPUs"},
	{"", ResultNotInitialized, true}:        {"the process has ended", "find out what ended it; if there is an image of it, restore that"},
	{"", ResultNotInitialized, false}:       {"the process does not use CUDA, or was forked from one that does", "criu dumps it without cucriu"},
	{"", ResultNoDevice, false}:             {"the driver finds no GPU", "run nvidia-smi on this host"},
	{"", ResultInvalidContext, false}:       {"the target has no usable CUDA context", "check that the target is healthy"},
	{"", ResultOperatingSystem, true}:       {"there is no such process, or it died", "check the pid: it must be from this program's pid namespace"},
	{"", ResultOperatingSystem, false}:      {"the process cannot be reached: it does not exist, has died, belongs to another user, or has no free file descriptor", "check the pid; run as root"},
	{"", ResultIllegalState, false}:         {"the call is not allowed in the current state of the process", "read its state"},
	{"", ResultNotFound, false}:             {"the driver did not find what it needs in the target", "check that target and controller use the same version of the driver's library"},
	{"", ResultNotReady, false}:             {"the process is not ready", "try again"},
	{"", ResultNotPermitted, false}:         {"the driver does not permit it", "run as root"},
	{"", ResultUnknown, false}:              {"the driver failed internally", "look for Xid messages in the kernel log (dmesg)"},
	{"", ResultNotSupported, false}: {
		"the driver does not support it for this process or on this platform",
		"start it without a profiler (CUPTI), even one that leaves it again; MIG, MPS, managed memory and " +
			"some arm64 platforms are excluded, too: see the driver's release notes",
	},
}
