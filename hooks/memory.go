package hooks

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"cucriu/cudackpt"
)

// memoryNeed is what a restore will take of each GPU's memory, in bytes.
type memoryNeed map[cudackpt.UUID]uint64

// restoreMargin is added for each process and GPU: a checkpoint was seen to
// free 8 MiB more than the driver had accounted to its process.
const restoreMargin = 16 << 20

// add adds what a process will take on the GPUs that it goes to.
func (n memoryNeed) add(m *Member) {
	for uuid, size := range m.MemoryBytes {
		to := uuid
		for _, pair := range m.Pairs {
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

// memoryHeld returns how many bytes a process holds on each GPU, which is what its
// checkpoint moves to the host and what its restore will take. It fails if that
// cannot be told: then it is not known either whether it could be restored.
func memoryHeld(ctx context.Context, driver *cudackpt.Driver, m *Member) (map[cudackpt.UUID]uint64, error) {
	held, err := driver.ProcessMemory(ctx, m.PID)
	if err != nil {
		return nil, fmt.Errorf("how much GPU memory it holds cannot be told, and so not whether it could be restored: %w", err)
	}
	for gpu, size := range held {
		if size == cudackpt.UnknownMemory {
			return nil, fmt.Errorf("the driver does not tell how much memory it holds on %v, and so not whether it could be restored", gpu)
		}
	}
	return held, nil
}

// require fails if a GPU has less free memory than the restore will take. It
// must be known before the driver is asked: a restore that runs out of memory
// loses the process for ever.
func (n memoryNeed) require(ctx context.Context, driver *cudackpt.Driver) error {
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
