package hooks

import (
	"cucriu/criuutil/proc"
	"cucriu/cudackpt"
)

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
