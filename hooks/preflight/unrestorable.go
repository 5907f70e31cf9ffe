package preflight

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
)

// unrestorable names what criu puts into an image without an error and can never restore. Each
// of these was tried with criu 4.2.
func unrestorable(pid int, held OpenFiles) (message, remedy string) {
	if exe, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe")); err == nil && strings.HasPrefix(exe, "/memfd:") {
		return "executes a program from memory, " + exe, "let it execute a file"
	}
	tids, err := proc.Threads(pid)
	if err != nil {
		return "", "" // it has ended
	}
	for _, tid := range tids {
		if policy, err := schedulingPolicy(tid); err == nil && !slices.Contains(restorablePolicies, policy) {
			return fmt.Sprintf("has a thread, %d, with the scheduling policy %d", tid, policy), fmt.Sprintf("chrt --other --pid 0 %d", tid)
		}
	}
	for _, file := range held.open {
		if file.link != "anon_inode:[eventpoll]" {
			continue
		}
		if closed := closedDuplicate(file, held.open); closed != "" {
			return fmt.Sprintf("has an epoll set, descriptor %s, that holds one file twice, the second time by the closed descriptor %s", file.number, closed),
				"let the program remove a descriptor from the set before it closes it"
		}
	}
	return "", ""
}

// restorablePolicies leaves out SCHED_DEADLINE and SCHED_EXT.
var restorablePolicies = []int{0, 1, 2, 3, 5} // SCHED_OTHER, FIFO, RR, BATCH and IDLE

func schedulingPolicy(tid int) (int, error) {
	attr, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		return 0, err
	}
	return int(attr.Policy), nil
}

// closedDuplicate finds a file that an epoll set holds by two descriptors, one of which is
// closed; "" if there is none. criu puts a descriptor that is open in its place, and cannot add
// the same one twice.
func closedDuplicate(epoll openFile, open []openFile) (closed string) {
	info, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(epoll.pid), "fdinfo", epoll.number))
	if err != nil {
		return ""
	}
	set, _ := strconv.Atoi(epoll.number)
	seen, taken := make(map[int]int), make(map[int]bool)
	for line := range strings.Lines(string(info)) {
		var target int
		var inode uint64
		fields := strings.Fields(line) // tfd: 5 events: 19 data: 5 pos:0 ino:3c sdev:10
		if len(fields) < 8 || fields[0] != "tfd:" {
			continue
		}
		fmt.Sscanf(fields[1], "%d", &target)
		fmt.Sscanf(fields[7], "ino:%x", &inode)
		is := func(fd int) bool {
			same, err := proc.InEpoll(epoll.pid, set, target, seen[target], fd)
			return err == nil && same
		}
		by := -1
		if is(target) {
			by = target
		} else {
			for _, f := range open {
				var stat unix.Stat_t
				if fd, _ := strconv.Atoi(f.number); (by < 0 || fd < by) && unix.Stat(f.path(), &stat) == nil && stat.Ino == inode && is(fd) {
					by = fd
				}
			}
			closed = fields[1]
		}
		seen[target]++
		if by >= 0 && taken[by] {
			return closed
		}
		taken[by] = true
	}
	return ""
}

// namespaceFindings refuses the processes in other namespaces than the root. criu dumps such
// mount and network namespaces alone, and restores them only if the root, too, is in another
// one than criu, as in a container. criu is in our namespaces.
func namespaceFindings(pids []int) Findings {
	const self = 0
	of := func(pid int, kind string) string {
		process := "self"
		if pid != self {
			process = strconv.Itoa(pid)
		}
		link, _ := os.Readlink(filepath.Join("/proc", process, "ns", kind))
		return link // empty if it has ended, or the kernel does not have the kind
	}
	var findings Findings
	for _, pid := range pids {
		for _, kind := range []string{"mnt", "net", "user", "pid", "pid_for_children", "ipc", "uts", "cgroup", "time", "time_for_children"} {
			common, _, _ := strings.Cut(kind, "_")
			its, root, ours := of(pid, kind), of(pids[0], common), of(self, common)
			nests := (kind == "mnt" || kind == "net") && root != ours && its != ours
			if its == "" || its == root || nests {
				continue
			}
			f := Finding{
				Name: FindingNamespace, Severity: SeverityError, PID: pid,
				Message: fmt.Sprintf("is in another namespace (%s) than the root of the tree (%s), and criu could not restore it there", its, root),
				Remedy:  "run the job without it (bubblewrap, Apptainer and unshare make namespaces), or start the whole job inside of it",
			}
			if status, err := proc.ReadStatus(pid); err == nil {
				f.Process = status.Name
			}
			findings = append(findings, f)
			break
		}
	}
	return findings
}
