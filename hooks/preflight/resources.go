package preflight

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"cucriu/internal/proc"
)

// resourceFindings finds out whether this host has room for what a dump needs. The content of
// the GPUs becomes memory of the processes, inside their control groups, and then goes into the
// image. writer is the pid of the process that writes the image, or of one in the same control
// groups. The driver also moves pinned host memory, which cannot be seen, so the result is the
// least that will be needed.
func resourceFindings(system proc.System, in *TreeInspection, imageDir string, writer int) (Findings, error) {
	if imageDir == "" {
		return stagingFindings(system, in.Processes, memoryImage{writer: writer, own: OwnMemory()})
	}
	need := in.imageSize()
	image := memoryImage{writer: writer, own: OwnMemory()}
	var stat unix.Statfs_t
	if err := unix.Statfs(imageDir, &stat); err != nil {
		return nil, fmt.Errorf("free space of %s: %w", imageDir, err)
	}
	if KeepsInMemory(int64(stat.Type)) {
		image.bytes = need
	}
	findings, err := stagingFindings(system, in.Processes, image)
	if err != nil {
		return nil, err
	}
	return append(findings, diskFindings(stat, need)...), nil
}

// memoryImage is an image as far as its files are kept in this host's memory.
type memoryImage struct {
	bytes  uint64 // 0 for an image on a disk
	writer int    // pid; the image's pages are charged to its control groups
	own    uint64 // what the programs take that make the dump, in the same groups
}

// OwnMemory returns how much memory criu, the hook, the watcher and the command take for a dump, in
// bytes. They were measured at 17 MiB (9, 5 and 2, and what the kernel keeps for them), and each
// thread that copies has two buffers. It is twice that, because a control group of cgroup v1 that is
// nearly full of a file's pages kills rather than waits for the disk.
func OwnMemory() uint64 { return 2*(17<<20) + uint64(min(runtime.NumCPU(), 32))<<20 }

// LimitOwnMemory has this process collect its garbage before it takes more than [OwnMemory].
func LimitOwnMemory() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(OwnMemory()))
	}
}

// KeepsInMemory reports whether a file system, given by its magic number, keeps what is written
// in memory and cannot give that memory back. The page cache of a disk can be given back, in a
// control group too: there the writer waits for the disk.
func KeepsInMemory(magic int64) bool {
	switch magic {
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC, unix.HUGETLBFS_MAGIC:
		return true
	}
	return false
}

// stagingFindings compares what the checkpoint takes with what the host has left, and with what
// each control group above the processes has left for those of them that are in it. An image in
// memory is counted on top: a process's staging memory is dropped only after all of it was
// copied, and if criu writes it, only at the end.
func stagingFindings(system proc.System, members []Process, image memoryImage) (Findings, error) {
	hierarchies, err := system.Hierarchies()
	if err != nil {
		return nil, err
	}
	var staged uint64
	var needs []*groupNeed
	byDir := make(map[string]*groupNeed)
	needOf := func(pid int, m *Process) ([]*groupNeed, error) {
		groups, err := hierarchies.MemoryGroups(pid)
		if errors.Is(err, proc.ErrGone) {
			return nil, nil
		}
		var of []*groupNeed
		for _, group := range groups {
			if byDir[group.Dir] == nil {
				byDir[group.Dir] = &groupNeed{MemoryGroup: group}
				needs = append(needs, byDir[group.Dir])
			}
			if byDir[group.Dir].first == nil {
				byDir[group.Dir].first = m
			}
			of = append(of, byDir[group.Dir])
		}
		return of, err
	}
	for i := range members {
		m := &members[i]
		staged += m.StagedBytes()
		of, err := needOf(m.PID, m)
		if err != nil {
			return nil, err
		}
		for _, need := range of {
			need.staged += m.StagedBytes()
		}
	}
	of, err := needOf(image.writer, nil)
	if err != nil {
		return nil, err
	}
	for _, need := range of {
		need.image, need.own = image.bytes, image.own
	}
	var findings Findings
	available, err := system.AvailableMemory()
	if err != nil {
		return nil, err
	}
	if staged+image.bytes > available {
		findings = append(findings, refuse(FindingStagingMemory, fmt.Sprintf("the checkpoint moves %s of GPU memory to this host's memory%s, of which %s are available", mib(staged), besidesImage(image.bytes), mib(available)),
			fmt.Sprintf("free %s of host memory", mib(staged+image.bytes-available))+orToDisk(image.bytes)))
	}
	for _, need := range needs {
		sum := need.staged + need.image + need.own
		if sum <= need.Room() || need.staged+need.image == 0 {
			continue
		}
		f := refuse(FindingMemoryCgroup, fmt.Sprintf("the checkpoint moves %s of GPU memory into its control group %s%s%s, which has %s left of its limit of %s",
			mib(need.staged), need.Dir, besidesImage(need.image), besidesUs(need.own), mib(need.Room()), mib(need.Limit)),
			fmt.Sprintf("raise its %s by %s, for the restore too", need.LimitFile(), mib(sum-need.Room()))+orToDisk(need.image))
		if need.first == nil { // only the writer is in this group
			f.Message = fmt.Sprintf("the image takes %s in memory, and is charged to the control group %s of who writes it, which has %s left of its limit of %s",
				mib(need.image), need.Dir, mib(need.Room()), mib(need.Limit))
		} else {
			f = need.first.about(f)
		}
		findings = append(findings, f)
	}
	return findings, nil
}

// groupNeed is what a dump takes of a control group's memory, in bytes.
type groupNeed struct {
	proc.MemoryGroup
	first              *Process // the first CUDA process in the group; nil if there is none
	staged, image, own uint64   // own is what the programs take that make the dump
}

func besidesImage(bytes uint64) string {
	if bytes == 0 {
		return ""
	}
	return fmt.Sprintf(" beside an image that takes %s of it, on a file system in memory", mib(bytes))
}

func besidesUs(bytes uint64) string {
	if bytes == 0 {
		return ""
	}
	return fmt.Sprintf(" beside the %s that criu and cucriu need there", mib(bytes))
}

func orToDisk(bytes uint64) string {
	if bytes == 0 {
		return ""
	}
	return ", or dump to a disk"
}

// imageSize returns the least that the image of a tree takes on disk: its private memory, the
// largest shared memory among its processes, and the staged memory.
func (in *TreeInspection) imageSize() uint64 {
	var need, largest uint64
	for _, l := range in.tree.looks {
		need += l.status.Anonymous
		largest = max(largest, l.status.Shared)
	}
	for i := range in.Processes {
		need += in.Processes[i].StagedBytes()
	}
	return need + largest
}

func diskFindings(stat unix.Statfs_t, need uint64) Findings {
	free := stat.Bfree * uint64(stat.Bsize)
	if need <= free || stat.Blocks == 0 { // some file systems do not say how large they are
		return nil
	}
	return Findings{refuse(FindingDiskSpace, fmt.Sprintf("the image takes at least %s, and the file system of the image directory has %s free", mib(need), mib(free)),
		fmt.Sprintf("free %s on it, or dump to another file system", mib(need-free)))}
}

// mib rounds up, so that a shortage never reads as 0.
func mib(bytes uint64) string { return fmt.Sprintf("%d MiB", (bytes+1<<20-1)>>20) }
