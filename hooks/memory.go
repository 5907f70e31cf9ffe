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

func (e *MemoryError) Error() string {
	return fmt.Sprintf("%v has %d MiB free and the restore needs %d MiB: free memory on it, or map to another GPU", e.GPU, e.Free>>20, e.Need>>20)
}
