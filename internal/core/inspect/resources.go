package inspect

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/core/agent"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/pages"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/self"
)

// Room is the room that this host has for what a dump needs; the zero Room for what a suspend needs, which makes no
// image.
type Room struct {
	imageDir string // empty if it is not known
	ordinary uint64 // what the image takes beside the memory of the GPUs, in bytes
	remedy   string // for a process whose framework holds more than it uses; or empty
}

// resourceFindings finds out whether this host has room for what a dump needs.
func (in *Inspection) resourceFindings(s *snapshot, imageDir string) (preflight.Findings, error) {
	room := Room{imageDir: imageDir, ordinary: s.ordinarySize(), remedy: s.roomRemedy()}
	findings, late, err := room.Foresee(in.Processes)
	if late {
		in.Room = &room
	}
	return findings, err
}

// Foresee judges the room before a job stands still. Much of the GPU memory of a process may be 0, which takes no room.
// Where the library in the process can count that, and there is room for the rest, late says that it is to be judged
// again when the job stands still.
func (r Room) Foresee(processes []Process) (findings preflight.Findings, late bool, err error) {
	findings, err = r.Judge(processes)
	if err != nil || len(findings) == 0 {
		return findings, false, err
	}
	least := slices.Clone(processes)
	for i := range least {
		if p := &least[i]; hasAgent(*p, (*agent.Agent).Counts) {
			p.Spared, late = p.StagedBytes(), true
		}
	}
	if late {
		findings, err = r.Judge(least)
	}
	return findings, late, err
}

// preallocation is what keeps JAX from taking 75 % of each GPU at its start.
const preallocation = "XLA_PYTHON_CLIENT_PREALLOCATE"

func (s *snapshot) roomRemedy() string {
	for _, p := range s.Processes {
		if value, _ := getenv(p.Environment(), preallocation); p.MapsAny(jaxFile) && value != "false" {
			return "start it with " + preallocation + "=false (cucriu run --setting jax-no-preallocation), so that JAX holds only what it uses"
		}
	}
	return ""
}

// Judge says whether there is room. The content of the GPUs becomes memory of the processes, inside their
// control groups, and then goes into the image. The driver also moves pinned host memory, which cannot be
// seen, so it is judged by the least that will be needed.
func (r Room) Judge(processes []Process) (preflight.Findings, error) {
	findings, err := r.judge(processes)
	for i := range findings {
		if r.remedy != "" {
			findings[i].Remedy += "; or " + r.remedy
		}
	}
	return findings, err
}

func (r Room) judge(processes []Process) (preflight.Findings, error) {
	image := memoryImage{writer: os.Getpid(), own: self.DumpMemory()}
	var stat unix.Statfs_t
	need := r.ordinary
	for i := range processes {
		staged := processes[i].StagedBytes()
		need += staged + pages.IndexBytes(staged)
	}
	if r.imageDir != "" {
		if err := unix.Statfs(r.imageDir, &stat); err != nil {
			return nil, fmt.Errorf("free space of %s: %w", r.imageDir, err)
		}
		if durable.KeepsInMemory(stat.Type) {
			image.bytes = need
		}
	}
	findings, err := stagingFindings(proc.System{}, processes, image)
	if free := stat.Bfree * uint64(stat.Bsize); need > free && stat.Blocks > 0 { // some file systems do not say how large they are
		free = free >> 20 << 20
		findings = append(findings, preflight.New(preflight.FindingDiskSpace,
			fmt.Sprintf("the image takes at least %s, but the file system of %s has %s free", mib(need), pathOf(r.imageDir), mib(free)),
			fmt.Sprintf("free at least %s on it, or write the image to another file system", mib(need-min(need, free)))))
	}
	return findings, err
}

// pathOf returns the path of a directory that may be given by its descriptor.
func pathOf(dir string) string {
	if path, err := os.Readlink(dir); err == nil && strings.HasPrefix(dir, "/proc/") {
		return path
	}
	return dir
}

// smallFiles is what the image has beside memory, for all processes and for each: files that take a page at least, the
// heads of others. A process of three threads was seen to have 150 KiB of them.
const smallFiles = 128 << 10

// ordinarySize returns the least that the image of a tree takes on disk beside the memory of the GPUs: its private
// memory, the largest shared memory among its processes, and small files.
func (s *snapshot) ordinarySize() uint64 {
	need, largest := uint64(smallFiles), uint64(0)
	for _, p := range s.Processes {
		need += p.Status().Anonymous + smallFiles
		largest = max(largest, p.Status().Shared)
	}
	return need + largest
}

// memoryImage is an image as far as its files are kept in this host's memory.
type memoryImage struct {
	bytes  uint64 // 0 for an image on a disk
	writer int    // pid of who writes it, or of one in the same control groups, to which the pages are charged
	own    uint64 // what the programs take that make the dump, in the same groups
}

// groupNeed is what a dump takes of a control group's memory, in bytes.
type groupNeed struct {
	proc.MemoryGroup
	first              *Process // the first CUDA process in the group; nil if there is none
	staged, image, own uint64   // own is what the programs take that make the dump
}

// stagingFindings compares what the checkpoint takes with what the host has left, and with what
// each control group above the processes has left for those of them that are in it. An image in
// memory is counted on top: a process's staging memory is dropped only after all of it was
// copied, and if criu writes it, only at the end.
func stagingFindings(system proc.System, members []Process, image memoryImage) (preflight.Findings, error) {
	hierarchies, err := system.Hierarchies()
	if err != nil {
		return nil, err
	}
	var staged uint64
	var needs []*groupNeed
	byDir := make(map[string]*groupNeed)
	each := func(pid int, do func(*groupNeed)) error {
		groups, err := hierarchies.MemoryGroups(pid)
		if errors.Is(err, proc.ErrGone) {
			return nil
		}
		for _, group := range groups {
			if byDir[group.Dir] == nil {
				byDir[group.Dir] = &groupNeed{MemoryGroup: group}
				needs = append(needs, byDir[group.Dir])
			}
			do(byDir[group.Dir])
		}
		return err
	}
	for i := range members {
		m := &members[i]
		staged += m.StagedBytes()
		err := each(m.PID, func(need *groupNeed) {
			need.staged += m.StagedBytes()
			if need.first == nil {
				need.first = m
			}
		})
		if err != nil {
			return nil, err
		}
	}
	if err := each(image.writer, func(need *groupNeed) { need.image, need.own = image.bytes, image.own }); err != nil {
		return nil, err
	}
	available, err := system.AvailableMemory()
	if err != nil {
		return nil, err
	}
	var besides, orToDisk string
	if image.bytes > 0 {
		besides, orToDisk = fmt.Sprintf(" beside an image that takes %s of it, on a file system in memory", mib(image.bytes)), ", or dump to a disk"
	}
	var findings preflight.Findings
	if staged+image.bytes > available {
		findings = append(findings, preflight.New(preflight.FindingStagingMemory, fmt.Sprintf("the checkpoint moves %s of GPU memory to this host's memory%s, of which %s are available", mib(staged), besides, mib(available)),
			fmt.Sprintf("free %s of host memory", mib(staged+image.bytes-available))+orToDisk))
	}
	for _, need := range needs {
		sum := need.staged + need.image + need.own
		if sum <= need.Room() || need.staged+need.image == 0 {
			continue
		}
		limit := fmt.Sprintf(", which has %s left of its limit of %s", mib(need.Room()), mib(need.Limit))
		f := preflight.New(preflight.FindingMemoryCgroup, "", fmt.Sprintf("raise its %s by %s, for the restore too", need.LimitFile(), mib(sum-need.Room())))
		if need.image > 0 {
			f.Remedy += orToDisk
		}
		if need.first == nil { // only the writer is in this group
			f.Message = fmt.Sprintf("the image takes %s in memory, and is charged to the control group %s of the writer%s", mib(need.image), need.Dir, limit)
		} else {
			f = need.first.about(f)
			f.Message = fmt.Sprintf("the checkpoint moves %s of GPU memory into its control group %s", mib(need.staged), need.Dir)
			if need.image > 0 {
				f.Message += besides
			}
			if need.own > 0 {
				f.Message += fmt.Sprintf(" beside the %s that criu and cucriu need there", mib(need.own))
			}
			f.Message += limit
		}
		findings = append(findings, f)
	}
	return findings, nil
}

// mib rounds up, so that a shortage never reads as 0.
func mib(bytes uint64) string { return fmt.Sprintf("%d MiB", (bytes+1<<20-1)>>20) }
