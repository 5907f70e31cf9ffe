package inspect

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/proc"
)

// HostNeed is what a restore will take of a host's memory, at least: its refusal must be true.
type HostNeed struct {
	Bytes  uint64   `json:"bytes"`
	Later  uint64   `json:"later,omitempty"`  // of Bytes, what is filled in once criu has restored the processes
	Groups []uint64 `json:"groups,omitempty"` // the control groups that limit it
}

// NeedOf returns what the restore of an image takes of memory, by a criu with this pid. m is nil if no process uses
// CUDA. What cannot be read is not counted: criu or the restore says what is wrong with it.
func NeedOf(dir string, m *imagedir.Manifest, criu int) HostNeed {
	restored, err := criuimage.ReadRestored(dir)
	if err != nil {
		return HostNeed{}
	}
	need := HostNeed{Bytes: restored.Bytes}
	if m != nil {
		need.Later = stagedMemory(dir, m)
		need.Bytes += need.Later
	}
	if restored.OtherGroups {
		return need
	}
	groups, _ := proc.System{}.MemoryGroups(criu)
	for _, group := range groups {
		need.Groups = append(need.Groups, group.ID())
	}
	return need
}

// stagedMemory is how much of its GPU memory that process has in its own memory on the way back which has most. The
// driver may be through with one before the next is filled in.
func stagedMemory(dir string, m *imagedir.Manifest) (most uint64) {
	for i := range m.Processes {
		p := &m.Processes[i]
		if p.Pages == nil { // it is in criu's images
			continue
		}
		reader, err := m.OpenPagesOf(p, dir)
		if err != nil {
			continue
		}
		var moved proc.Range
		if p.Out != nil {
			moved = p.Out.Staging
		}
		most = max(most, reader.Memory(moved))
		reader.Close()
	}
	return most
}

// Require fails if a host, or a control group of the process with this pid, has less memory than the restore will take
// beside what is promised to others. What the kernel gives up for it is available: caches, and what it can swap out.
func (n HostNeed) Require(system proc.System, pid int, promised []HostNeed) error {
	available, err := system.MostMemory()
	if err != nil {
		return nil // nothing is known to be wrong
	}
	swap, _ := system.FreeSwap()
	var others uint64
	for _, other := range promised {
		others += other.Bytes
	}
	if err := n.judge(available+swap, others, "this host has ", ""); err != nil {
		err.Finding = preflight.FindingHostMemory
		return err
	}
	groups, _ := system.MemoryGroups(pid)
	for _, group := range groups {
		id := group.ID()
		if !slices.Contains(n.Groups, id) {
			continue
		}
		others = 0
		for _, other := range promised {
			if slices.Contains(other.Groups, id) {
				others += other.Bytes
			}
		}
		name := fmt.Sprintf("the control group %s has, of its limit of %s, ", group.Dir, mib(group.Limit))
		if err := n.judge(group.Room()+swap, others, name, " or raise its "+group.LimitFile()); err != nil {
			err.Finding = preflight.FindingMemoryCgroup
			return err
		}
	}
	return nil
}

// memoryFindings refuse an image for which this host has too little memory.
func (h Host) memoryFindings(dir string, m *imagedir.Manifest) (findings preflight.Findings) {
	var promised []HostNeed
	if h.PromisedMemory != nil {
		promised = h.PromisedMemory()
	}
	err := NeedOf(dir, m, os.Getpid()).Require(proc.System{}, os.Getpid(), promised)
	if memory, is := errors.AsType[*memoryError](err); is {
		findings = append(findings, preflight.Found(memory.Finding, err))
	}
	return findings
}

// judge compares what is needed with what there is.
func (n HostNeed) judge(available, promised uint64, whose, or string) *memoryError {
	has := whose + mibDown(available) + " of memory available"
	needs := "the restore needs at least " + mib(n.Bytes)
	switch {
	case n.Bytes > available:
		return &memoryError{
			Explained: fault.New(has+", and "+needs, "free "+mib(n.Bytes-available)+or), patience: endingPatience,
		}
	case n.Bytes > available-min(available, promised):
		has += fmt.Sprintf(", of which jobs that are being restored still need %s", mib(promised))
		remedy := "try again when they run, or free " + mib(n.Bytes+promised-available)
		return &memoryError{Explained: fault.New(has+", and "+needs, remedy+or), patience: promisePatience}
	}
	return nil
}

// mibDown rounds down, so that what there is never reads as more.
func mibDown(bytes uint64) string { return fmt.Sprintf("%d MiB", bytes>>20) }

// promisePatience is how long a restore waits for memory that others may need.
const promisePatience = time.Minute

// memoryError says that a GPU or the host has too little free memory.
type memoryError struct {
	*fault.Explained
	Finding  string        // of package preflight; empty: of a GPU
	patience time.Duration // how long it may take until there is enough
}

// Patience returns how long to wait after an error before it is final: it says that memory is short, and others may
// soon need less of it.
func Patience(err error) time.Duration {
	if refused, is := errors.AsType[*memoryError](err); is {
		return refused.patience
	}
	return 0
}
