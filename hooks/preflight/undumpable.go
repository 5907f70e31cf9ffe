package preflight

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/proc"
)

// generalFindings are the things that criu refuses or cannot handle, as far as /proc shows
// them.
func (l *look) generalFindings() Findings {
	var findings Findings
	add := func(name, message, remedy string) {
		findings = append(findings, l.about(refuse(name, message, remedy)))
	}
	if thread, tracerPID := l.tracedThread(); tracerPID != 0 {
		tracer := strconv.Itoa(tracerPID)
		if t, err := proc.ReadStatus(tracerPID); err == nil {
			tracer += " (" + t.Name + ")"
		}
		of := "is"
		if thread != l.pid {
			of = "has a thread, " + strconv.Itoa(thread) + ", that is"
		}
		add(FindingTraced, of+" traced by process "+tracer+" (a debugger?), and criu must trace it itself", "detach it before the dump")
	}
	if slices.Contains(l.names, ioURing) || slices.ContainsFunc(l.open, func(f *file) bool { return f.link == ioURing }) {
		message := "has an io_uring, which criu cannot dump"
		if users := l.matching(ringUser); len(users) > 0 {
			message += fmt.Sprintf(" (%s may have made it)", strings.Join(users, " or "))
		}
		add(FindingIOURing, message, "start the job with cucriu run --no-checkpoints: libraries do without an io_uring then")
	}
	capabilities, _ := proc.Capabilities() // none if that cannot be told
	if of := foreignTo(l.status, os.Getuid(), os.Getgid(), capabilities); of != "" && l.inOurs("user") {
		add(FindingOtherUser, "is "+of+"'s, and criu reads the limits of another user's process only with CAP_SYS_RESOURCE, which is lacking here",
			"add it to the container or service (--cap-add SYS_RESOURCE), or run the job as the user who dumps it")
	}
	if message, remedy := l.unrestorable(capabilities); message != "" {
		add(FindingUnrestorable, message+", which criu dumps and never restores", remedy)
	}
	if policy := memoryPolicy(l.pid); policy != "default" && policy != "" {
		findings = append(findings, l.about(warn(FindingMemoryPolicy, "has the NUMA memory policy "+policy+", which a restore does not bring back",
			"restore it with numactl, too")))
	}
	return findings
}

// ioURing is what an io_uring is called where it is open or mapped.
const ioURing = "anon_inode:[io_uring]"

// ringUser is a library that uses an io_uring if it can. uvloop, Node.js and some builds of PyTorch
// have libuv inside.
var ringUser = regexp.MustCompile(`/(liburing|libuv|libtorch_cpu)[^/]*\.so[^/]*$|/uvloop/[^/]+\.so$|/node(js)?$`)

// foreignTo names the user or group whose process criu could not dump as this user, with these
// capabilities; "" if it could. prlimit(2) wants all ids to be ours, or a capability in the user
// namespace of the process.
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
func (l *look) tracedThread() (tid, tracer int) {
	for _, tid := range l.threads() {
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
	return Findings{aboutProcess(pid, refuse(FindingUnsupportedProcess, "has other threads, but its main thread has ended (pthread_exit), and criu cannot dump it",
		"let the main thread wait for the others"))}
}

// sharingFindings refuses processes that share what only threads of one process may share.
func (t *tree) sharingFindings() Findings {
	var pid, other int
	var shared string
	if !lasts(func() bool {
		var alive []int
		for _, l := range t.looks {
			if status, err := proc.ReadStatus(l.pid); err == nil && !status.Ended {
				alive = append(alive, l.pid)
			}
		}
		pid, other, shared = proc.Sharing(alive)
		return shared != ""
	}) {
		return nil
	}
	return Findings{aboutProcess(pid, refuse(FindingUnsupportedProcess, fmt.Sprintf("shares its %s with process %d (clone), and criu cannot dump that", shared, other),
		"run the job without it; if it was about to execute a program (vfork), try again"))}
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
	return Findings{aboutProcess(criu, refuse(FindingCriuInside, "is in the tree that is to be dumped, and criu cannot dump itself",
		"start the dump from outside of the tree, or dump a part of the tree that it is not in"))}
}

// aboutProcess marks a finding as one about a process that was not looked at.
func aboutProcess(pid int, f Finding) Finding {
	f.PID = pid
	if status, err := proc.ReadStatus(pid); err == nil {
		f.Process = status.Name
	}
	return f
}

// processName names a process for people.
func processName(pid int) string { return aboutProcess(pid, Finding{}).Subject() }

// namespaceFindings refuses the processes in other namespaces than the root. criu dumps such
// mount and network namespaces alone, and restores them only if the root, too, is in another
// one than criu, as in a container. criu is in our namespaces.
func (t *tree) namespaceFindings() Findings {
	var findings Findings
	for i, l := range t.looks {
		for _, kind := range []string{"mnt", "net", "user", "pid", "pid_for_children", "ipc", "uts", "cgroup", "time", "time_for_children"} {
			common, _, _ := strings.Cut(kind, "_")
			its, root, ours := l.namespace(kind), t.looks[0].namespace(common), namespaceOf("self", common)
			if i == 0 && kind == "user" && its != ours && l.inOurs("mnt") {
				findings = append(findings, l.about(refuse(FindingNamespace, "is in a user namespace of its own ("+its+"), but not in a mount namespace, and criu could not mount there what a restore needs",
					"run the job without the user namespace")))
			}
			nests := (kind == "mnt" || kind == "net") && root != ours && its != ours
			if its == "" || its == root || nests {
				continue
			}
			findings = append(findings, l.about(refuse(FindingNamespace, fmt.Sprintf("is in another namespace (%s) than the root of the tree (%s), and criu could not restore it there", its, root),
				"run the job without it (bubblewrap, Apptainer and unshare make namespaces), or start the whole job inside of it")))
			break
		}
	}
	return findings
}
