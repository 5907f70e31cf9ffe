package hooks

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"cucriu/criuutil/proc"
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

// memoryHeld asks NVML how many bytes a process holds on each GPU. A GPU on which
// it has no context is not there, and neither is any if NVML does not list the
// process, as in some containers and virtual machines.
func memoryHeld(ctx context.Context, driver *cudackpt.Driver, m *Member) (map[cudackpt.UUID]uint64, error) {
	listed, err := driver.ProcessMemory(ctx, m.PID)
	if err != nil {
		return nil, fmt.Errorf("how much GPU memory is in use cannot be told, and so not whether there is room for a restore: %w", err)
	}
	return listed, nil
}

// knownMemory is what is known of the memory that a process holds: what its
// checkpoint moves to the host and what its restore will take. Nil says that it is
// not known until the checkpoint has moved it: see measureStaged.
func knownMemory(listed map[cudackpt.UUID]uint64) map[cudackpt.UUID]uint64 {
	for _, bytes := range listed {
		if bytes == cudackpt.UnknownMemory {
			return nil
		}
	}
	if len(listed) == 0 {
		return nil
	}
	return listed
}

// memoryFinding says that it is not known how much memory a process holds.
func (m *Member) memoryFinding(listed map[cudackpt.UUID]uint64) Findings {
	if m.MemoryBytes != nil {
		return nil
	}
	message := "NVML does not list it: it holds no GPU memory, or NVML cannot see it"
	if len(listed) > 0 {
		message = "NVML does not tell how much GPU memory it holds"
	}
	return Findings{m.found(Finding{
		Name: FindingMemoryUnknown, Severity: SeverityWarning,
		Message: message + "; what a restore needs is measured when the checkpoint has moved it to the host, and counted for every GPU that it sees",
		Remedy:  "see that this host has memory for what is on its GPUs; in a virtual machine or container, the driver may have to be told to account for processes",
	})}
}

// measureStaged takes the size of the staging memory for what a restore will
// take, where NVML did not tell: what has come to the memory of the process since
// before the checkpoint, while nothing of it ran. On an H100 that was what NVML would
// have listed, contexts included, and 10 MiB more; nothing for a process without a
// context. Any GPU that it sees may have to take all of it. It does nothing for a
// process of which more is known, or which was not seen before its checkpoint.
func (t *target) measureStaged() error {
	m := t.member
	if m.MemoryBytes != nil || m.PrivateBefore == 0 {
		return nil
	}
	space, err := proc.ReadAddressSpace(m.PID)
	if err != nil {
		return err
	}
	// Whoever comes after a hook that was killed has the sum alone.
	staged := proc.Total(space.Private)
	staged -= min(staged, m.PrivateBefore)
	if t.before.Mapped != nil {
		staged = max(staged, proc.Total(space.NewSince(t.before)))
	}
	m.MemoryBytes = make(map[cudackpt.UUID]uint64)
	for _, gpu := range m.GPUs {
		m.MemoryBytes[gpu.UUID] = staged
	}
	return nil
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
