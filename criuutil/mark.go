package criuutil

import (
	"fmt"
	"slices"

	"cucriu/internal/kit/proc"
)

// Mark returns what identifies the processes that criu is going to create: its shared memory, by inode.
// They inherit it, and nobody else has it. They keep the part through which criu commands them even if
// criu dies, until they run the job's code again.
//
// A criu service has forked this criu, and may have forked others. What it shares with all of them is
// left out.
func (c *Criu) Mark() ([]uint64, error) {
	mark, err := sharedMemory(c.PID)
	if err != nil {
		return nil, fmt.Errorf("shared memory of criu: %w", err)
	}
	status, err := proc.ReadStatus(c.PID)
	if err != nil {
		return nil, err
	}
	if status.PPID > 0 { // else it is in another pid namespace
		common, err := sharedMemory(status.PPID)
		if err != nil {
			return nil, fmt.Errorf("shared memory of criu's parent: %w", err)
		}
		mark = slices.DeleteFunc(mark, func(inode uint64) bool { return slices.Contains(common, inode) })
	}
	return mark, nil
}

// HasMark reports whether a process has a mark of [Criu.Mark].
func HasMark(pid int, mark []uint64) bool {
	has, err := sharedMemory(pid)
	return err == nil && slices.ContainsFunc(has, func(inode uint64) bool { return slices.Contains(mark, inode) })
}

// sharedMemory lists the inodes of the anonymous memory that a process shares with its children.
func sharedMemory(pid int) ([]uint64, error) {
	maps, err := proc.Mappings(pid)
	if err != nil {
		return nil, err
	}
	var inodes []uint64
	for _, m := range maps {
		if m.Perms.Shared && m.Pathname == "/dev/zero (deleted)" && !slices.Contains(inodes, m.Inode) {
			inodes = append(inodes, m.Inode)
		}
	}
	return inodes, nil
}
