package prepare

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/units"
)

// direction says on which end of a migration memory is counted.
type direction int

const (
	leaving  direction = iota // the processes are there already
	arriving                  // the processes are still to come
)

// findings find out whether this host has room for the job on its way, and whether it has it also
// if the job's memory is sent ahead although nobody has asked for that. Then there has to be room
// for all that may have changed: the source writes it down beside the images of both rounds.
func (r Room) findings(j *Job, end direction) (findings preflight.Findings, ahead bool, err error) {
	if r.Ahead {
		findings, err = roomFindings(j, r.Dir, end, 2)
		return findings, true, err
	}
	images := uint64(2)
	if end == leaving {
		images = 3
	}
	most, err := roomFindings(j, r.Dir, end, images)
	if err != nil {
		return nil, false, err
	}
	findings, err = roomFindings(j, r.Dir, end, 1)
	return findings, most.Err() == nil, err
}

// roomFindings find out whether this host has memory, and dir space, for the job on its way. The
// images hold what is in the job's memory and on its GPUs. Beside them a host has the processes
// themselves, with what is on the GPUs in their memory, or in the watcher's.
func roomFindings(j *Job, dir string, end direction, images uint64) (preflight.Findings, error) {
	image := images * (j.HostBytes() + j.GPUBytes())
	dir = durable.Existing(dir)
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return nil, fmt.Errorf("free space of %s: %w", dir, err)
	}
	need := j.GPUBytes()
	if end == arriving {
		need += j.HostBytes()
	}
	inMemory := durable.KeepsInMemory(int64(stat.Type))
	if inMemory {
		need += image
	}
	var system proc.System
	available, err := system.AvailableMemory()
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("during the migration the job takes %s of this host's memory: %s for the content of its GPUs", size(need), size(j.GPUBytes()))
	if end == arriving {
		what += fmt.Sprintf(", %s for its own memory", size(j.HostBytes()))
	}
	if inMemory {
		what += fmt.Sprintf(", %s for the image, which %s keeps in memory", size(image), dir)
	}
	f := preflight.Fine(preflight.FindingHostMemory, fmt.Sprintf("%s; %s are available", what, size(available)))
	if need > available {
		f.Severity, f.Remedy = preflight.SeverityError, "free "+size(need-available)
		if inMemory {
			f.Remedy += ", or name a directory on a disk"
		}
	}
	findings := preflight.Findings{f}
	free := stat.Bfree * uint64(stat.Bsize)
	if stat.Blocks > 0 && image > free { // some file systems do not say how large they are
		message := fmt.Sprintf("the image takes at least %s, but the file system of %s has %s free", size(image), dir, size(free))
		findings = append(findings, preflight.New(preflight.FindingDiskSpace, message,
			fmt.Sprintf("free %s on it, or name a directory on another file system", size(image-free))))
	}
	if end == leaving {
		return findings, nil // a dump looks at the control groups of the job
	}
	groups, err := system.MemoryGroups(os.Getpid())
	for _, group := range groups {
		if need > group.Room() {
			message := fmt.Sprintf("%s, but the control group %s of the receiver has %s left of its limit of %s",
				what, group.Dir, size(group.Room()), size(group.Limit))
			findings = append(findings, preflight.New(preflight.FindingMemoryCgroup, message,
				fmt.Sprintf("raise its %s by %s", group.LimitFile(), size(need-group.Room()))))
		}
	}
	return findings, err
}

func size(bytes uint64) string { return units.Size(int64(bytes)) }

// Free returns how much may be written into a directory, in bytes.
func Free(dir string) (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, fmt.Errorf("%s: %w", dir, err)
	}
	room := int64(fs.Bavail) * fs.Bsize
	if !durable.KeepsInMemory(int64(fs.Type)) {
		return room, nil
	}
	memory, err := (proc.System{}).AvailableMemory()
	return min(room, int64(memory)), err
}
