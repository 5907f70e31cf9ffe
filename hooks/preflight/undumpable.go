package preflight

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"cucriu/criuutil/proc"
)

// generalFindings are the things that criu refuses or cannot handle, as far as /proc shows
// them.
func generalFindings(pid int, status proc.Status, held OpenFiles) Findings {
	var findings Findings
	add := func(name, message, remedy string) {
		findings = append(findings, Finding{Name: name, Severity: SeverityError, PID: pid, Process: status.Name, Message: message, Remedy: remedy})
	}
	if thread, tracerPID := tracedThread(pid); tracerPID != 0 {
		tracer := strconv.Itoa(tracerPID)
		if t, err := proc.ReadStatus(tracerPID); err == nil {
			tracer += " (" + t.Name + ")"
		}
		of := "is"
		if thread != pid {
			of = "has a thread, " + strconv.Itoa(thread) + ", that is"
		}
		add(FindingTraced, of+" traced by process "+tracer+" (a debugger?), and criu must trace it itself", "detach it before the dump")
	}
	for _, inode := range held.anonymous {
		if inode == "anon_inode:[io_uring]" {
			message := "has an io_uring, which criu cannot dump"
			if len(held.ringUsers) > 0 {
				message += fmt.Sprintf(" (%s may have made it)", strings.Join(held.ringUsers, " or "))
			}
			add(FindingIOURing, message, "start the job with cucriu run --no-checkpoints: libraries do without an io_uring then")
			continue
		}
		add(FindingAnonymousInode, "has "+inode+" open, which criu cannot dump", "let the job close it, or run it without")
	}
	if len(held.infiniband) > 0 {
		add(FindingInfiniBand, fmt.Sprintf("has %v open, which criu cannot dump", held.infiniband), "run the job without RDMA (NCCL_IB_DISABLE=1)")
	}
	return findings
}

// tracedThread finds a thread of a process that another process traces, and its tracer. A
// tracer may trace any single thread.
func tracedThread(pid int) (tid, tracer int) {
	tids, err := proc.Threads(pid)
	if err != nil {
		return 0, 0
	}
	for _, tid := range tids {
		status, err := proc.ReadStatus(tid)
		if err == nil && status.TracerPID != 0 && status.TracerPID != os.Getpid() {
			return tid, status.TracerPID
		}
	}
	return 0, 0
}

// InsideFindings refuses a tree that contains criu itself, or the process that would start it.
func InsideFindings(pids []int, criu int) Findings {
	if !slices.Contains(pids, criu) {
		return nil
	}
	f := Finding{
		Name: FindingCriuInside, Severity: SeverityError, PID: criu, Message: "is in the tree that is to be dumped, and criu cannot dump itself",
		Remedy: "start the dump from outside of the tree, or dump a part of the tree that it is not in",
	}
	if status, err := proc.ReadStatus(criu); err == nil {
		f.Process = status.Name
	}
	return Findings{f}
}
