package hooks

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
)

// resourceFindings finds out whether this host has room for what a dump needs:
// the content of the GPUs becomes memory of the processes, inside their control
// groups, and then goes into the image. Pinned host memory, which the driver
// also moves, cannot be seen, so this is the least that will be needed.
func resourceFindings(system criuutil.System, in *inspection, imageDir string) (Findings, error) {
	findings, err := stagingFindings(system, in.members)
	if err != nil {
		return nil, err
	}
	if imageDir == "" {
		return findings, nil
	}
	need, err := imageSize(system, in)
	if err != nil {
		return nil, err
	}
	disk, err := diskFindings(imageDir, need)
	return append(findings, disk...), err
}

// stagedBytes is the memory that a process's checkpoint will take on the host.
func (m *Member) stagedBytes() uint64 {
	var sum uint64
	for _, size := range m.MemoryBytes {
		sum += size
	}
	return sum
}

// stagingFindings compares what the checkpoint takes with what the host has
// left, and with what every control group on the way up has left for those
// processes that are in it.
func stagingFindings(system criuutil.System, members []Member) (Findings, error) {
	var total uint64
	var groups []criuutil.MemoryGroup
	need := make(map[string]uint64) // by the directory of the group
	first := make(map[string]*Member)
	for i := range members {
		m := &members[i]
		total += m.stagedBytes()
		limits, err := system.MemoryGroups(m.PID)
		if errors.Is(err, criuutil.ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, group := range limits {
			if first[group.Dir] == nil {
				first[group.Dir] = m
				groups = append(groups, group)
			}
			need[group.Dir] += m.stagedBytes()
		}
	}
	var findings Findings
	available, err := system.AvailableMemory()
	if err != nil {
		return nil, err
	}
	if total > available {
		findings = append(findings, Finding{
			Name: FindingStagingMemory, Severity: SeverityError,
			Message: fmt.Sprintf("the checkpoint moves %s of GPU memory to this host's memory, of which %s are available", mib(total), mib(available)),
			Remedy:  fmt.Sprintf("free %s of host memory", mib(total-available)),
		})
	}
	for _, group := range groups {
		if short := need[group.Dir]; short > group.Room() {
			findings = append(findings, first[group.Dir].found(Finding{
				Name: FindingMemoryCgroup, Severity: SeverityError,
				Message: fmt.Sprintf("the checkpoint moves %s of GPU memory into its control group %s, which has %s left of its limit of %s",
					mib(short), group.Dir, mib(group.Room()), mib(group.Limit)),
				Remedy: fmt.Sprintf("raise its %s by %s, for the restore too", group.LimitFile(), mib(short-group.Room())),
			}))
		}
	}
	return findings, nil
}

// imageSize is the least that the image of a tree takes on disk: its private
// memory, the largest of its processes' shared memory, and the staged memory.
func imageSize(system criuutil.System, in *inspection) (uint64, error) {
	var need, largest uint64
	for _, pid := range in.pids {
		anonymous, shared, err := system.DumpedMemory(pid)
		if errors.Is(err, criuutil.ErrGone) {
			continue
		}
		if err != nil {
			return 0, err
		}
		need += anonymous
		largest = max(largest, shared)
	}
	for i := range in.members {
		need += in.members[i].stagedBytes()
	}
	return need + largest, nil
}

func diskFindings(dir string, need uint64) (Findings, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return nil, fmt.Errorf("free space of %s: %w", dir, err)
	}
	free := stat.Bfree * uint64(stat.Bsize)
	if need <= free || stat.Blocks == 0 { // some file systems do not tell
		return nil, nil
	}
	return Findings{{
		Name: FindingDiskSpace, Severity: SeverityError,
		Message: fmt.Sprintf("the image takes at least %s, and the file system of the image directory has %s free", mib(need), mib(free)),
		Remedy:  fmt.Sprintf("free %s on it, or dump to another file system", mib(need-free)),
	}}, nil
}

// mib rounds up, so that what is short never reads 0.
func mib(bytes uint64) string { return fmt.Sprintf("%d MiB", (bytes+1<<20-1)>>20) }
