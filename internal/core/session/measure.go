package session

import (
	"slices"

	"github.com/prometheus/procfs"

	"cucriu/internal/core/journal"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/pages"
	"cucriu/internal/kit/proc"
)

// StepRestoreGPU is the step of the way back that may take long.
const StepRestoreGPU = "restore"

// measureOf returns how to measure the progress of a step; nil if it cannot be measured. Staged
// GPU memory makes the processes grow, and on the way back they shrink again. An image grows in
// its directory.
func measureOf(r *journal.Record, step string) func() (done, total int64) {
	var pids []int
	var memory int64
	for _, member := range r.Members {
		pids = append(pids, member.PID)
		memory += int64(member.StagedBytes())
	}
	switch step {
	case string(journal.StepMove), string(journal.StepCheckpoint):
		if step == string(journal.StepCheckpoint) && slices.ContainsFunc(r.Members, func(m journal.Member) bool { return m.Moved }) {
			return nil // how much is left is not known
		}
		before := resident(pids)
		return func() (int64, int64) { return resident(pids) - before, memory }
	case StepRestoreGPU:
		if r.Kind == journal.KindRestore && slices.ContainsFunc(r.Members, func(m journal.Member) bool { return m.Gated }) {
			return nil // the library may read the files, and nothing grows
		}
		before := resident(pids)
		if !slices.ContainsFunc(r.Members, func(m journal.Member) bool { return m.Pages != nil && m.Pages.Dropped }) {
			return func() (int64, int64) { return before - resident(pids), memory }
		}
		most := before // the memory is filled in first, so they grow before they shrink
		return func() (int64, int64) {
			now := resident(pids)
			most = max(most, now)
			return (most - before + most - now) / 2, memory
		}
	case string(journal.StepCopy): // the copy begins during the checkpoint
		dir := r.ImageDir
		before := durable.MatchedBytes(dir, pages.FilePattern)
		return func() (int64, int64) { return durable.MatchedBytes(dir, pages.FilePattern) - before, memory - before }
	case string(journal.StepDumping):
		tree, err := proc.Tree(r.Root.PID)
		if err != nil {
			return nil
		}
		total, dir := resident(tree), r.ImageDir
		return func() (int64, int64) { return durable.MatchedBytes(dir, "pages-*.img"), total }
	}
	return nil
}

// NoteResident notes how much of the host's memory the processes of a restore have by now, as others count on the rest:
// see [journal.PromisedMemory]. It reports whether that is more than before.
func NoteResident(r *journal.Record) bool {
	if r.Resident >= r.HostMemory.Bytes {
		return false
	}
	now := residentTree(r)
	if now <= r.Resident {
		return false
	}
	r.Resident = now
	return true
}

// NoteRestored notes that criu has restored all memory. A process has mapped no page of shared memory that it has not
// touched since, and each of those that share a page has it, so what is there is not what [NoteResident] sees.
func NoteRestored(r *journal.Record) {
	r.Resident = residentTree(r)
	r.HostMemory.Bytes = r.Resident + r.HostMemory.Later
}

func residentTree(r *journal.Record) uint64 {
	var pids []int
	for _, id := range r.Tree {
		pids = append(pids, id.PID)
	}
	return uint64(resident(pids))
}

func resident(pids []int) int64 {
	var sum int64
	for _, pid := range pids {
		if proc, err := procfs.NewProc(pid); err == nil {
			if stat, err := proc.Stat(); err == nil {
				sum += int64(stat.ResidentMemory())
			}
		}
	}
	return sum
}
