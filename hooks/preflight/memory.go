package preflight

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"cucriu/cudackpt"
)

// memoryNeed is what a restore will take of each GPU's memory, in bytes.
type MemoryNeed map[cudackpt.UUID]uint64

// restoreMargin is added for each process and GPU: a checkpoint was seen to
// free 8 MiB more than the driver had accounted to its process.
const restoreMargin = 16 << 20

// add adds what a process that held so much will take on the GPUs that it goes to.
func (n MemoryNeed) Add(memory map[cudackpt.UUID]uint64, pairs []cudackpt.GPUPair) {
	for uuid, size := range memory {
		to := uuid
		for _, pair := range pairs {
			if pair.Old == uuid {
				to = pair.New
			}
		}
		if size > math.MaxUint64-restoreMargin-n[to] {
			n[to] = math.MaxUint64
			continue
		}
		n[to] += size + restoreMargin
	}
}

// measure asks NVML how many bytes a process holds on each GPU, and notes what is known
// of it: what its checkpoint moves to the host and what its restore will take. A GPU on
// which it has no context is not listed, and neither is any if NVML does not list the
// process, as in some containers and virtual machines. Then nothing is known until the
// checkpoint has moved it.
func (p *Process) measure(ctx context.Context, driver *cudackpt.Driver) (listed map[cudackpt.UUID]uint64, err error) {
	listed, err = driver.ProcessMemory(ctx, p.PID)
	if err != nil {
		return nil, fmt.Errorf("how much GPU memory is in use cannot be told, and so not whether there is room for a restore: %w", err)
	}
	p.MemoryBytes = nil
	for _, bytes := range listed {
		if bytes == cudackpt.UnknownMemory {
			return listed, nil
		}
	}
	if len(listed) > 0 {
		p.MemoryBytes = listed
	}
	return listed, nil
}

// Measure notes how much memory each process holds on each GPU, and returns what NVML
// lists.
func Measure(ctx context.Context, driver *cudackpt.Driver, processes []Process) ([]map[cudackpt.UUID]uint64, error) {
	listed := make([]map[cudackpt.UUID]uint64, len(processes))
	for i := range processes {
		p := &processes[i]
		var err error
		if listed[i], err = p.measure(ctx, driver); err != nil {
			return nil, fmt.Errorf("process %d (%s): %w", p.PID, p.Name, err)
		}
	}
	return listed, nil
}

// require fails if a GPU has less free memory than the restore will take. It
// must be known before the driver is asked: a restore that runs out of memory
// loses the process for ever.
func (n MemoryNeed) Require(ctx context.Context, driver *cudackpt.Driver) error {
	for _, uuid := range slices.SortedFunc(maps.Keys(n), cudackpt.UUID.Compare) {
		memory, err := driver.Memory(ctx, uuid)
		if err != nil {
			return fmt.Errorf("free memory of %v cannot be told, and a restore that runs out of it would lose the process: %w", uuid, err)
		}
		if memory.Free < n[uuid] {
			return &MemoryError{GPU: uuid, Need: n[uuid], Free: memory.Free}
		}
	}
	return nil
}

// MemoryError says that a GPU has less free memory than a restore would take.
type MemoryError struct {
	GPU        cudackpt.UUID
	Need, Free uint64 // bytes
}

func (e *MemoryError) Error() string { return e.Meaning() + ": " + e.Remedy() }

// Meaning is the error without its remedy.
func (e *MemoryError) Meaning() string {
	return fmt.Sprintf("%v has %d MiB free and the restore needs %d MiB", e.GPU, e.Free>>20, e.Need>>20)
}

// Remedy says what to do about it.
func (e *MemoryError) Remedy() string { return "free memory on it, or map to another GPU" }
