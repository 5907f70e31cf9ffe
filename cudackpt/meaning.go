package cudackpt

// meaning is what a result means for one call, and what to do about it.
type meaning struct{ means, remedy string }

// meaning explains the error. One CUresult stands for very different things in different calls.
// The texts say what the driver (580) was seen to do.
func (e *Error) meaning() meaning {
	switch e.Call {
	case callLock:
		switch e.Result {
		case ResultNotReady:
			return meaning{
				"GPU work was still in flight when the timeout ended, the process is running as before",
				"give the lock more time; lock processes that wait for each other (NCCL ranks) at the same time",
			}
		case ResultIllegalState:
			return meaning{"the process is not running but locked, checkpointed or failed already", "read its state; unlock it, or restore and unlock it, first"}
		}
	case callCheckpoint:
		switch e.Result {
		case ResultIllegalState:
			return meaning{"the process is not locked", "lock it first"}
		case ResultNotSupported:
			return meaning{
				"the process uses something that the driver cannot checkpoint: managed memory (cudaMallocManaged), MIG, MPS or graphics",
				"run it without these: with them it cannot be checkpointed",
			}
		case ResultOutOfMemory:
			return meaning{
				"there is not enough host memory for the content of its GPUs",
				"free host memory, or raise its cgroup's memory limit by as much as it holds on its GPUs",
			}
		case ResultOperatingSystem:
			if e.Gone {
				return meaning{"the process died before its checkpoint was complete", "look for what killed it: the out-of-memory killer, or a thread that synchronized with the GPU (SIGSEGV)"}
			}
		}
	case callRestore:
		switch e.Result {
		case ResultIllegalState:
			return meaning{"the process is not checkpointed", "read its state: it may have been restored already, then unlock it"}
		case ResultInvalidValue:
			return meaning{
				"the GPU map was refused, and nothing was restored: the old side must be exactly the GPUs that it could see when it was checkpointed, used or not, and the new side different GPUs that it can see now",
				"restore it with a map that keeps this, or with none; if every map is refused, the process holds memory that this driver never restores: CUDA IPC memory (NCCL over P2P or SHM), or 512 MiB and more that another GPU accesses",
			}
		case ResultNotSupported:
			return meaning{
				"the process can see fewer GPUs than when it was checkpointed, or GPUs of another type, or it holds CUDA IPC memory (NCCL over P2P or SHM); nothing was restored",
				"make as many /dev/nvidia* nodes of the same GPU type visible in its mount namespace and restore it again; IPC memory needs a driver of 610 or newer",
			}
		case ResultOutOfMemory:
			return meaning{
				"there was not enough free memory on the GPUs, and the driver does not get over it: every further restore of this process fails, its GPU state is lost",
				"kill it and restore it from an image; compare the free memory with what is needed before a restore",
			}
		case ResultOperatingSystem:
			if e.Gone {
				return meaning{"the process died before it was restored", "restore it from an image"}
			}
			return meaning{
				"the process cannot be reached; if its state is checkpointed, an earlier restore ran out of GPU memory and its GPU state is lost",
				"if there is no such process, check the pid; if it is checkpointed, kill it and restore it from an image",
			}
		}
	case callUnlock:
		if e.Result == ResultIllegalState {
			return meaning{"the process is not locked", "read its state: restore it first if it is checkpointed; if it is running there is nothing to do"}
		}
	}
	return e.Result.meaning(e.Gone)
}

// meaning returns what a result means in every call that has no meaning of its own for it.
func (r Result) meaning(gone bool) meaning {
	switch r {
	case ResultInvalidValue:
		return meaning{"the driver does not accept the arguments", "report it with the driver's version: this should have been found before"}
	case ResultOutOfMemory:
		return meaning{"the driver ran out of memory", "free memory on the host and on its GPUs"}
	case ResultNotInitialized:
		return meaning{"the process has no CUDA: it never called cuInit, or it was forked from a process that did", "leave it to criu alone"}
	case ResultNoDevice:
		return meaning{"the driver finds no GPU", "check nvidia-smi on this host"}
	case ResultInvalidContext:
		return meaning{"the target has no usable CUDA context", "check that the target is healthy"}
	case ResultOperatingSystem:
		if gone {
			return meaning{"there is no such process, or it died", "check the pid: it must be one in this program's pid namespace"}
		}
		return meaning{"the process cannot be reached: it does not exist, died, or is another user's", "check the pid; run as root"}
	case ResultIllegalState:
		return meaning{"the call is not legal from the state in which the process is", "read its state"}
	case ResultNotFound:
		return meaning{"the driver does not find what it needs in the target", "check that target and controller use the same version of the driver's library"}
	case ResultNotReady:
		return meaning{"the process is not ready", "try again"}
	case ResultNotPermitted:
		return meaning{"the driver does not permit it", "run as root"}
	case ResultNotSupported:
		return meaning{"the driver does not support it for this process or on this platform", "check the driver's release notes: MIG, MPS, managed memory and some arm64 platforms are excluded"}
	case ResultUnknown:
		return meaning{"the driver failed internally", "look for Xid messages in the kernel log (dmesg)"}
	}
	return meaning{}
}
