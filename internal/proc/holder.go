package proc

import (
	"errors"
	"fmt"

	"github.com/prometheus/procfs"
)

// Holder says who has a pid, or another number that no new process can get while it is in use.
type Holder struct {
	PID   int    // of the process
	PPID  int    // its parent
	Name  string // of the process
	As    string // "pid", "thread", "process group" or "session"
	Ended bool   // it is a zombie: the number is free once its parent has reaped it
}

// HoldersOf finds out which of these numbers are in use, and by whom. A new process or thread
// can get none of them: the kernel keeps a number for as long as it names a process, a thread,
// a process group or a session.
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
			holder.PID, holder.As = status.TGID, "thread"
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
		for id, as := range map[int]string{stat.Session: "session", stat.PGRP: "process group"} {
			if wanted[id] {
				holders[id] = Holder{PID: pid, PPID: stat.PPID, Name: Printable(stat.Comm), As: as, Ended: stat.State == "Z" || stat.State == "X"}
			}
		}
	}
	return holders, nil
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
