package cudackpt

import (
	"context"
	"math"
)

// nvmlTurn is the turn of NVML; no process has this pid.
const nvmlTurn = 0

// MemoryInfo is the memory of one GPU, in bytes.
type MemoryInfo struct {
	Total uint64
	Free  uint64 // what a process could still allocate
}

// UnknownMemory stands for an amount that the driver knows but does not tell, as
// it does inside some virtual machines and containers.
const UnknownMemory uint64 = math.MaxUint64

// Memory asks NVML for the memory of one GPU of this host. No CUDA context is
// made, so that asking takes none of it. The context works as it does for the
// methods of [Process].
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

// ProcessMemory asks NVML how many bytes of each GPU a process holds, contexts
// included. GPUs on which it holds none are not in the map, so a process that is
// checkpointed, or that has no CUDA, gets an empty one. The amount is
// UnknownMemory where the driver does not tell. The pid must be one of the
// initial pid namespace, which NVML counts in.
func (d *Driver) ProcessMemory(ctx context.Context, pid int) (map[UUID]uint64, error) {
	gpus, err := d.HostGPUs()
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

// sumFor adds up what pid holds in the list of one GPU; ok says that it is there.
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
