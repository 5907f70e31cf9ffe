package preflight

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

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
	if held.ring {
		message := "has an io_uring, which criu cannot dump"
		if len(held.ringUsers) > 0 {
			message += fmt.Sprintf(" (%s may have made it)", strings.Join(held.ringUsers, " or "))
		}
		add(FindingIOURing, message, "start the job with cucriu run --no-checkpoints: libraries do without an io_uring then")
	}
	if of := otherUser(pid, status); of != "" {
		add(FindingOtherUser, "is "+of+"'s, and criu reads the limits of another user's process only with CAP_SYS_RESOURCE, which is lacking here",
			"add it to the container or service (--cap-add SYS_RESOURCE), or run the job as the user who dumps it")
	}
	if message, remedy := unrestorable(pid, held); message != "" {
		add(FindingUnrestorable, message+", which criu dumps and never restores", remedy)
	}
	if policy := memoryPolicy(pid); policy != "default" && policy != "" {
		findings = append(findings, Finding{
			Name: FindingMemoryPolicy, Severity: SeverityWarning, PID: pid, Process: status.Name,
			Message: "has the NUMA memory policy " + policy + ", which a restore does not bring back", Remedy: "restore it with numactl, too",
		})
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
	if !inOurs(pid, "user") {
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

// lasts reports whether something stays true for a second. What is true for a moment only, as
// between vfork and exec, or while a process ends, is no obstacle.
func lasts(is func() bool) bool {
	for end := time.Now().Add(time.Second); is(); time.Sleep(10 * time.Millisecond) { // there is no event to wait for
		if time.Now().After(end) {
			return true
		}
	}
	return false
}

// endedFindings refuses a process whose main thread has ended while others run.
func endedFindings(pid int) Findings {
	if !lasts(func() bool {
		tids, err := proc.Threads(pid)
		return err == nil && slices.ContainsFunc(tids, func(tid int) bool {
			status, err := proc.ReadStatus(tid)
			return err == nil && !status.Ended && tid != pid
		})
	}) {
		return nil
	}
	return Findings{aboutProcess(pid, Finding{
		Name: FindingUnsupportedProcess, Severity: SeverityError, Message: "has other threads, but its main thread has ended (pthread_exit), and criu cannot dump it",
		Remedy: "let the main thread wait for the others",
	})}
}

// sharingFindings refuses processes that share what only threads of one process may share.
func sharingFindings(pids []int) Findings {
	var pid, other int
	var shared string
	if !lasts(func() bool {
		alive := slices.DeleteFunc(slices.Clone(pids), func(pid int) bool {
			status, err := proc.ReadStatus(pid)
			return err != nil || status.Ended
		})
		pid, other, shared = proc.Sharing(alive)
		return shared != ""
	}) {
		return nil
	}
	return Findings{aboutProcess(pid, Finding{
		Name: FindingUnsupportedProcess, Severity: SeverityError, Message: fmt.Sprintf("shares its %s with process %d (clone), and criu cannot dump that", shared, other),
		Remedy: "run the job without it; if it was about to execute a program (vfork), try again",
	})}
}

// memoryPolicy is the policy that a process has for its first mapping, which is the program's:
// one line, because the kernel walks through all pages of a mapping for its line.
func memoryPolicy(pid int) string {
	file, err := os.Open("/proc/" + strconv.Itoa(pid) + "/numa_maps")
	if err != nil {
		return "" // it has ended, or the kernel knows no nodes
	}
	defer file.Close()
	line := make([]byte, 64)
	n, _ := file.Read(line)
	if fields := strings.Fields(string(line[:n])); len(fields) > 1 {
		return fields[1]
	}
	return ""
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
