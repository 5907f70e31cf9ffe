package preflight

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
)

// unrestorable names what criu puts into an image without an error and can never restore. Each
// of these was tried with criu 4.2.
func unrestorable(pid int, held OpenFiles) (message, remedy string) {
	for _, look := range []func(int, OpenFiles) (message, remedy string){memoryProgram, oddThread, orphanTimer, oddFile, sealedMemory, highDescriptor} {
		if message, remedy = look(pid, held); message != "" {
			break
		}
	}
	return message, remedy
}

func memoryProgram(_ int, held OpenFiles) (message, remedy string) {
	if strings.HasPrefix(held.program, "/memfd:") {
		return "executes a program from memory, " + held.program, "let it execute a file"
	}
	return "", ""
}

// oddThread finds a thread that criu does not restore as it is. To criu, all threads of a process
// are in the namespaces of the first one, and have its descriptors and its working directory.
func oddThread(pid int, _ OpenFiles) (message, remedy string) {
	tids, _ := proc.Threads(pid) // it may have ended
	for _, tid := range tids {
		if policy, err := schedulingPolicy(tid); err == nil && !slices.Contains(restorablePolicies, policy) {
			return fmt.Sprintf("has a thread, %d, with the scheduling policy %d", tid, policy), fmt.Sprintf("chrt --other --pid 0 %d", tid)
		}
		own := ""
		ends := func() bool { own = ownOf(pid, tid); return own != "" }
		if tid != pid && lasts(ends) {
			return fmt.Sprintf("has a thread, %d, with %s of its own", tid, own), "run the job without what calls unshare(2) or setns(2) in a thread"
		}
	}
	return "", ""
}

// ownOf names what a thread does not share with its process; "" if it shares everything. A thread
// that is just ending shares nothing.
func ownOf(pid, tid int) string {
	if own, err := proc.OwnOfThread(pid, tid); err != nil || own != "" {
		return own
	}
	for _, kind := range []string{"mnt", "net", "ipc", "uts", "cgroup"} {
		if its := namespaceOf(tid, kind); its != "" && its != namespaceOf(pid, kind) {
			return "a namespace (" + its + ")"
		}
	}
	return ""
}

var timerThread = regexp.MustCompile(`(?m)^notify: \w+/tid\.(\d+)$`)

func orphanTimer(pid int, _ OpenFiles) (message, remedy string) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "timers"))
	if err != nil {
		return "", ""
	}
	for _, match := range timerThread.FindAllSubmatch(text, -1) {
		if _, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid), "task", string(match[1]))); errors.Is(err, os.ErrNotExist) {
			return fmt.Sprintf("has a timer that signals its thread %s, which has ended", match[1]), "let the program delete the timer (timer_delete)"
		}
	}
	return "", ""
}

func oddFile(pid int, held OpenFiles) (message, remedy string) {
	for _, file := range held.open {
		if message, remedy = file.unrestorable(held.open); message != "" {
			return fmt.Sprintf("has %s open (descriptor %s)%s", file.link, file.number, message), remedy
		}
	}
	for _, used := range held.directories {
		if why := ofProcess(pid, used.link); why != "" {
			return fmt.Sprintf("has %s %s%s", used.link, used.how, why), "let the job change to another directory"
		}
	}
	return "", ""
}

// unrestorable says what criu would not restore of an open file. The others are those that the
// same process has open.
func (f openFile) unrestorable(others []openFile) (message, remedy string) {
	if f.link == "anon_inode:[eventpoll]" {
		if closed := closedDuplicate(f, others); closed != "" {
			return ", an epoll set that holds one file twice, the second time by the closed descriptor " + closed,
				"let the program remove a descriptor from the set before it closes it"
		}
		return "", ""
	}
	if why := ofProcess(f.pid, f.link); why != "" {
		return why, "let the job close it"
	}
	reads, writes := f.access()
	var stat unix.Statx_t
	if reads && !writes || unix.Statx(unix.AT_FDCWD, f.path(), unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &stat) != nil {
		return "", ""
	}
	const fixed = unix.STATX_ATTR_IMMUTABLE | unix.STATX_ATTR_APPEND
	kind := stat.Mode & unix.S_IFMT
	onlyPath := strings.HasPrefix(f.link, "/memfd:") || terminal.MatchString(f.link) || kind == unix.S_IFIFO || kind == unix.S_IFSOCK || strings.HasPrefix(f.link, "anon_inode:")
	switch {
	case !reads && !writes && onlyPath:
		return " with O_PATH", "let the job close it"
	case writes && kind == unix.S_IFREG && stat.Attributes&fixed != 0 && (stat.Attributes&unix.STATX_ATTR_IMMUTABLE != 0 || f.info().Flags&unix.O_APPEND == 0):
		return " for writing, which nobody may open for it any more (chattr)", "chattr -i -a " + f.link
	}
	return "", ""
}

var processFile = regexp.MustCompile(`^/proc/(\d+)(?:/task/(\d+))?(/.*)?$`)

// ofProcess says why criu could not open a file of a process in /proc again: it opens files before
// it makes threads, and mistakes the name of a process's directory.
func ofProcess(pid int, link string) string {
	match := processFile.FindStringSubmatch(link)
	if match == nil {
		return ""
	}
	owner, task, rest := match[1], match[2], match[3]
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "root/proc", owner, "status")) // as the process sees it
	switch isThread := err == nil && !bytes.Contains(status, []byte("\nTgid:\t"+owner+"\n")); {
	case task != "" && task != owner || isThread:
		return ", a file of a thread"
	case task == "" && rest == "":
		return ", the directory of a process"
	}
	return ""
}

// sealedMemory finds shared memory that was mapped after it had been sealed against writing. criu
// maps it first, and nobody can seal it then.
func sealedMemory(pid int, held OpenFiles) (message, remedy string) {
	for _, addresses := range held.sharedMemfds {
		file, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "map_files", addresses))
		if err != nil {
			continue // it was unmapped
		}
		seals, err := unix.FcntlInt(file.Fd(), unix.F_GET_SEALS, 0)
		file.Close()
		if err == nil && seals&unix.F_SEAL_WRITE != 0 {
			return "has shared memory mapped at " + addresses + " that is sealed against writing (memfd, F_SEAL_WRITE)", "let the job map it MAP_PRIVATE, or seal it with F_SEAL_FUTURE_WRITE"
		}
	}
	return "", ""
}

// highDescriptor finds a descriptor above which criu has no room for its own: a restore needs 32, below
// its limit, which it raises if it may. valgrind takes the highest that there are.
func highDescriptor(_ int, held OpenFiles) (message, remedy string) {
	highest := 0
	for _, f := range held.open {
		number, _ := strconv.Atoi(f.number)
		highest = max(highest, number)
	}
	var limit unix.Rlimit
	capabilities, err := proc.System{}.Capabilities()
	if err != nil || unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return "", ""
	}
	if text, err := os.ReadFile("/proc/sys/fs/nr_open"); err == nil && capabilities&(1<<unix.CAP_SYS_RESOURCE) != 0 {
		limit.Max, _ = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	}
	if uint64(highest)+32 <= limit.Max&^127 {
		return "", ""
	}
	return fmt.Sprintf("has a descriptor, %d, too close to the limit of %d", highest, limit.Max), "start the job with a lower limit (ulimit -n)"
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

// removedFindings refuses removed files and directories whose names criu could not use for the
// moment of a restore: it makes them again by their old names, and then removes them.
func removedFindings(processes []ProcessInspection) Findings {
	var findings Findings
	known := make(map[string]uint64) // inodes of removed directories
	for _, p := range processes {
		used := slices.Clone(p.held.directories)
		for _, f := range p.held.open {
			used = append(used, usedFile{f.link, "open (descriptor " + f.number + ")", f.path()})
		}
		for _, u := range used {
			name, removed := strings.CutSuffix(u.link, " (deleted)")
			var stat unix.Stat_t
			if !removed || !isUnlinked(u.link) || strings.HasPrefix(name, "/proc/") || unix.Stat(u.file, &stat) != nil || stat.Nlink > 0 && stat.Mode&unix.S_IFMT != unix.S_IFDIR {
				continue
			}
			if why := unusable(p, name, stat, known); why != "" {
				findings = append(findings, aboutProcess(p.pid, Finding{
					Name: FindingUnrestorable, Severity: SeverityError, Message: fmt.Sprintf("has %s %s, which was removed, and criu could not restore it: %s", name, u.how, why),
					Remedy: "let the job close or leave it, or rename what is in its place",
				}))
			}
		}
	}
	return findings
}

// unusable says why a removed name cannot be used again; "" if it can.
func unusable(p ProcessInspection, name string, stat unix.Stat_t, known map[string]uint64) string {
	at := name
	if !inOurs(p.pid, "mnt") {
		at = filepath.Join("/proc", strconv.Itoa(p.pid), "root", name)
	}
	parent, err := os.Stat(filepath.Dir(at))
	if errors.Is(err, unix.ENOTDIR) || err == nil && !parent.IsDir() {
		return "a part of its path is no directory any more"
	}
	if len(filepath.Base(name)) > 235 { // criu appends ".cr.ID.ghost"
		return "its name is too long"
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		return ""
	}
	if _, err := os.Lstat(at); err == nil {
		return "something else has this name now"
	}
	if other, is := known[at]; is && other != stat.Ino {
		return "it is the second of this name"
	}
	known[at] = stat.Ino
	return ""
}

// namespaceFindings refuses the processes in other namespaces than the root. criu dumps such
// mount and network namespaces alone, and restores them only if the root, too, is in another
// one than criu, as in a container. criu is in our namespaces.
func namespaceFindings(pids []int) Findings {
	var findings Findings
	for _, pid := range pids {
		for _, kind := range []string{"mnt", "net", "user", "pid", "pid_for_children", "ipc", "uts", "cgroup", "time", "time_for_children"} {
			common, _, _ := strings.Cut(kind, "_")
			its, root, ours := namespaceOf(pid, kind), namespaceOf(pids[0], common), namespaceOf(os.Getpid(), common)
			if ownUser := pid == pids[0] && kind == "user" && its != ours && inOurs(pid, "mnt"); ownUser {
				findings = append(findings, aboutProcess(pid, Finding{
					Name: FindingNamespace, Severity: SeverityError,
					Message: "is in a user namespace of its own (" + its + "), but not in a mount namespace, and criu could not mount there what a restore needs",
					Remedy:  "run the job without the user namespace",
				}))
			}
			nests := (kind == "mnt" || kind == "net") && root != ours && its != ours
			if its == "" || its == root || nests {
				continue
			}
			findings = append(findings, aboutProcess(pid, Finding{
				Name: FindingNamespace, Severity: SeverityError,
				Message: fmt.Sprintf("is in another namespace (%s) than the root of the tree (%s), and criu could not restore it there", its, root),
				Remedy:  "run the job without it (bubblewrap, Apptainer and unshare make namespaces), or start the whole job inside of it",
			}))
			break
		}
	}
	return findings
}

// namespaceOf returns the namespace of a process or thread; "" if it has ended, or if the kernel
// does not have the kind.
func namespaceOf(pid int, kind string) string {
	link, _ := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "ns", kind))
	return link
}
