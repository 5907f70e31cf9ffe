package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// mostListings is how often what begins or ends all the time is listed.
const mostListings = 10

// Tree returns the pids of root and all its descendants, parents before their children.
// This is what criu dumps for the root.
func Tree(root int) (pids []int, err error) {
	for range mostListings {
		var ended bool
		// The children of one that ends become those of a process that may have been looked at before.
		if pids, ended, err = listTree(root); err != nil || !ended {
			break
		}
	}
	return pids, err
}

// listTree lists a tree, and reports whether one of its processes has ended meanwhile.
func listTree(root int) (pids []int, ended bool, err error) {
	pids = []int{root}
	for i := 0; i < len(pids); i++ {
		children, err := Children(pids[i])
		if errors.Is(err, ErrGone) && i > 0 {
			ended = true
			continue
		}
		if err != nil {
			return nil, false, err
		}
		pids = append(pids, children...)
	}
	return pids, ended, nil
}

// Children lists the children of all threads of a process. The kernel's list may lack one that lives: it
// moves to another thread, which may have been looked at before, when its own thread ends; and while a
// list is read, the end of one child can hide the next. So it is read until it says the same twice. Of
// children that begin or end all the time, it returns all that were seen.
func Children(pid int) ([]int, error) {
	last, err := listChildren(pid)
	all := last
	for range mostListings {
		if err != nil {
			return nil, err
		}
		before := last
		if last, err = listChildren(pid); err == nil && slices.Equal(before, last) {
			return last, nil
		}
		all = append(all, last...)
	}
	slices.Sort(all)
	return slices.Compact(all), err
}

// listChildren lists the children of all threads of a process, of which it may miss some, in order.
func listChildren(pid int) ([]int, error) {
	tids, err := Threads(pid)
	if err != nil {
		return nil, err
	}
	var children []int
	for _, tid := range tids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, tid))
		if errors.Is(err, os.ErrNotExist) && ThreadExists(pid, tid) {
			return nil, fmt.Errorf("/proc/%d/task/%d/children: the kernel lacks CONFIG_PROC_CHILDREN, which criu needs too", pid, tid)
		}
		if err != nil {
			continue // the thread ended
		}
		for _, field := range bytes.Fields(data) {
			child, err := strconv.Atoi(string(field))
			if err != nil {
				return nil, fmt.Errorf("children of process %d: %w", pid, err)
			}
			children = append(children, child)
		}
	}
	slices.Sort(children)
	return children, nil
}

// Threads returns the tids of the threads of a process.
func Threads(pid int) ([]int, error) {
	entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
	if err != nil {
		return nil, GoneOr(pid, err)
	}
	tids := make([]int, 0, len(entries))
	for _, entry := range entries {
		tid, err := strconv.Atoi(entry.Name())
		if err != nil {
			return nil, fmt.Errorf("threads of process %d: %w", pid, err)
		}
		tids = append(tids, tid)
	}
	return tids, nil
}

// ThreadExists reports whether a process has a thread with this tid.
func ThreadExists(pid, tid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d/stat", pid, tid))
	return err == nil
}

// All lists the pids of all processes.
func All() ([]int, error) {
	procs, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("list the processes: %w", err)
	}
	pids := make([]int, len(procs))
	for i, proc := range procs {
		pids[i] = proc.PID
	}
	return pids, nil
}

// IsAncestor reports whether process pid is an ancestor of process of, judged by the
// parents that /proc shows now.
func IsAncestor(pid, of int) (bool, error) {
	for of > 1 {
		status, err := ReadStatus(of)
		if err != nil {
			return false, err
		}
		if status.PPID == pid {
			return true, nil
		}
		of = status.PPID
	}
	return false, nil
}

// Holder says who has a pid, or another number that no new process can get while it is in use.
type Holder struct {
	PID     int    // of the process; 0 for one that /proc does not show any more
	PPID    int    // its parent
	Name    string // of the process
	As      string // "pid", "thread ID", "process group ID" or "session ID"; empty without a process
	Ended   bool   // it is a zombie: the number is free once its parent has reaped it
	Exiting bool   // it is a zombie or will be one without running any more code: see [Process.Exiting]
}

// HoldersOf finds out which of these numbers are in use, and by whom. A new process or thread
// can get none of them: the kernel keeps a number for as long as it names a process, a thread,
// a process group or a session. It frees the number a moment after /proc has lost the process, which
// can be long on a busy machine: such a holder has no PID, and is exiting.
func HoldersOf(ids []int) (map[int]Holder, error) {
	holders := make(map[int]Holder)
	for _, id := range ids {
		status, err := ReadStatus(id)
		if errors.Is(err, ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		holder := Holder{PID: id, PPID: status.PPID, Name: status.Name, As: "pid", Ended: status.Ended}
		if status.TGID != id {
			holder.PID, holder.As = status.TGID, "thread ID"
		}
		holders[id] = holder
	}
	pids, err := All()
	if err != nil {
		return nil, err
	}
	wanted := make(map[int]bool)
	for _, id := range ids {
		if _, taken := holders[id]; !taken {
			wanted[id] = true
		}
	}
	for _, pid := range pids {
		stat, err := procStat(pid)
		if errors.Is(err, ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for id, as := range map[int]string{stat.Session: "session ID", stat.PGRP: "process group ID"} {
			if wanted[id] {
				holders[id] = Holder{PID: pid, PPID: stat.PPID, Name: Printable(stat.Comm), As: as, Ended: stat.State == "Z" || stat.State == "X"}
			}
		}
	}
	for id, holder := range holders {
		process, err := Open(holder.PID)
		if err != nil && !errors.Is(err, ErrGone) {
			return nil, err
		}
		holder.Exiting = err != nil || process.Exiting()
		if err == nil {
			process.Close()
		}
		holders[id] = holder
	}
	return holders, addUnseen(holders, ids)
}

// addUnseen adds those numbers that have no holder and are in use. F_SETOWN looks a number up where
// the kernel looks for a free one, and changes nothing but the file, which is ours.
func addUnseen(holders map[int]Holder, ids []int) error {
	file, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("ask for numbers in use: %w", os.NewSyscallError("eventfd", err))
	}
	defer unix.Close(file)
	for _, id := range ids {
		if _, seen := holders[id]; seen {
			continue
		}
		if _, err := unix.FcntlInt(uintptr(file), unix.F_SETOWN, id); err == nil {
			holders[id] = Holder{Ended: true, Exiting: true}
		}
	}
	return nil
}

const flagKernelThread = 0x00200000 // PF_KTHREAD of the kernel's sched.h

// IsKernelThread reports whether a process is a thread of the kernel. Such a one has no program
// and no memory of its own.
func IsKernelThread(pid int) (bool, error) {
	stat, err := procStat(pid)
	if err != nil {
		return false, fmt.Errorf("flags: %w", err)
	}
	return isKernelThread(stat), nil
}

func isKernelThread(stat procfs.ProcStat) bool { return stat.Flags&flagKernelThread != 0 }
