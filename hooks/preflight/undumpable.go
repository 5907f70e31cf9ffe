package preflight

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

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
	if held.mptcp {
		add(FindingMPTCP, "has an MPTCP socket, which criu cannot dump", "let the job use plain TCP: Go programs do so with GODEBUG=multipathtcp=0, which cucriu run --dir sets")
	}
	if of := otherUser(pid, status); of != "" {
		add(FindingOtherUser, "is "+of+"'s, and criu reads the limits of another user's process only with CAP_SYS_RESOURCE, which is lacking here",
			"add it to the container or service (--cap-add SYS_RESOURCE), or run the job as the user who dumps it")
	}
	if len(held.infiniband) > 0 {
		add(FindingInfiniBand, fmt.Sprintf("has %v open, which criu cannot dump", held.infiniband), "run the job without RDMA (NCCL_IB_DISABLE=1)")
	}
	if message, remedy := unrestorable(pid, held); message != "" {
		add(FindingUnrestorable, message+", which criu dumps and never restores", remedy)
	}
	return findings
}

// otherUser names the user or group whose process criu could not dump from here; "" if it could.
// prlimit(2) wants all ids to be ours, or a capability in the user namespace of the process.
func otherUser(pid int, status proc.Status) string {
	capabilities, err := proc.System{}.Capabilities()
	if err != nil {
		return ""
	}
	ours, err := os.Readlink("/proc/self/ns/user")
	theirs, theirErr := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/user")
	if err != nil || theirErr != nil || ours != theirs {
		return ""
	}
	return foreignTo(status, os.Getuid(), os.Getgid(), capabilities)
}

func foreignTo(status proc.Status, uid, gid int, capabilities uint64) string {
	if capabilities&(1<<unix.CAP_SYS_RESOURCE) != 0 || len(status.UIDs) < 3 || len(status.GIDs) < 3 {
		return ""
	}
	for i := range 3 { // the real, the effective and the saved one
		if status.UIDs[i] != uid {
			return fmt.Sprintf("user %d", status.UIDs[i])
		}
		if status.GIDs[i] != gid {
			return fmt.Sprintf("group %d", status.GIDs[i])
		}
	}
	return ""
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
