package cudackpt

import (
	"context"
	"math"
)

// nvmlTurn is the key of NVML among the turns; no process has this pid.
const nvmlTurn = 0

// MemoryInfo is the memory of one GPU, in bytes.
type MemoryInfo struct {
	Total uint64
	Free  uint64 // what a process could still allocate
}

// UnknownMemory stands for an amount that the driver knows but does not tell, as inside some
// virtual machines and containers.
const UnknownMemory uint64 = math.MaxUint64

// Memory asks NVML for the memory of one GPU of this host. It makes no CUDA context, so asking
// takes no GPU memory. The context ctx works as it does for the methods of [Process].
func (d *Driver) Memory(ctx context.Context, gpu UUID) (MemoryInfo, error) {
	var info MemoryInfo
	err := d.withNVML(ctx, "nvmlDeviceGetMemoryInfo", func() error {
		memory, err := d.nvml.memory(gpu)
		info = MemoryInfo{Total: memory.total, Free: memory.free}
		return err
	})
	if err != nil {
		return MemoryInfo{}, err
	}
	return info, nil
}

// ProcessMemory asks NVML how many bytes of each GPU a process holds, contexts included. The
// map leaves out GPUs on which it holds none, so it is empty for a process that is checkpointed
// or has no CUDA. Where the driver does not tell, the amount is [UnknownMemory]. NVML counts in
// the initial pid namespace, so the pid must be one of that namespace.
func (d *Driver) ProcessMemory(ctx context.Context, pid int) (map[UUID]uint64, error) {
	gpus, err := d.OwnGPUs()
	if err != nil {
		return nil, err
	}
	held := make(map[UUID]uint64)
	err = d.withNVML(ctx, "nvmlDeviceGetComputeRunningProcesses_v3", func() error {
		for _, gpu := range gpus {
			list, err := d.nvml.computeProcesses(gpu.UUID)
			if err != nil {
				return err
			}
			if bytes, ok := sumFor(list, pid); ok {
				held[gpu.UUID] = bytes
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return held, nil
}

// ContextsOn asks NVML which processes have a context on a GPU. It returns their pids in the initial pid
// namespace, in no order; none in some virtual machines and containers, where the driver does not tell.
func (d *Driver) ContextsOn(ctx context.Context, gpu UUID) (pids []int, err error) {
	err = d.withNVML(ctx, "nvmlDeviceGetComputeRunningProcesses_v3", func() error {
		list, err := d.nvml.computeProcesses(gpu)
		for _, process := range list {
			pids = append(pids, int(process.pid))
		}
		return err
	})
	return pids, err
}

// sumFor adds up what pid holds in the list of one GPU. ok says whether the pid is in it.
func sumFor(list []nvmlProcessInfo, pid int) (bytes uint64, ok bool) {
	for _, process := range list {
		if int(process.pid) != pid {
			continue
		}
		ok = true
		if process.usedGPUMemory == UnknownMemory || bytes == UnknownMemory {
			bytes = UnknownMemory
			continue
		}
		bytes += process.usedGPUMemory
	}
	return bytes, ok
}

func (d *Driver) withNVML(ctx context.Context, call string, run func() error) error {
	return d.turns.do(ctx, call, nvmlTurn, func() error {
		if err := d.nvml.ensure(d.lib.besides(sonameNVML)); err != nil {
			return err
		}
		return run()
	})
}
