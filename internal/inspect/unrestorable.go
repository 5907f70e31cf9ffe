package inspect

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/proc"
	"cucriu/internal/units"
)

// This file finds what criu puts into an image without an error and never restores. Each of these
// was tried with criu 4.2.

const neverRestored = ", which criu dumps but cannot restore"

func (l *look) programInMemory(found found) {
	if program := l.program(); strings.HasPrefix(program, "/memfd:") {
		found("executes a program from memory, "+program+neverRestored, "run the program from a file")
	}
}

func (l *look) programByPath(found found) {
	for _, f := range l.open {
		if strings.HasPrefix(f.link, "/") && f.info().Flags&unix.O_PATH != 0 && l.of.programs[f.name()] {
			found("has the program "+f.name()+" of a process "+f.how+" with O_PATH"+neverRestored, "")
		}
	}
}

// restorablePolicies leaves out SCHED_DEADLINE and SCHED_EXT.
var restorablePolicies = []uint32{0, 1, 2, 3, 5} // SCHED_OTHER, FIFO, RR, BATCH and IDLE

// oddThread finds a thread that criu does not restore as it is. To criu, all threads of a process
// are in the namespaces of the first one, and have its descriptors and its working directory.
func (l *look) oddThread(found found) {
	for _, tid := range l.threads {
		if attr, err := unix.SchedGetAttr(tid, 0); err == nil && !slices.Contains(restorablePolicies, attr.Policy) {
			found(fmt.Sprintf("has a thread, %d, with the scheduling policy %d", tid, attr.Policy)+neverRestored, fmt.Sprintf("chrt --other --pid 0 %d", tid))
			return
		}
		own := ""
		if tid != l.pid && lasts(func() bool { own = l.ownOf(tid); return own != "" }) {
			found(fmt.Sprintf("has a thread, %d, with %s of its own", tid, own)+neverRestored, "run the job without the code that calls unshare(2) or setns(2) in a thread")
			return
		}
	}
}

// ownOf names what a thread does not share with its process; "" if it shares everything. A thread
// that is just ending shares nothing.
func (l *look) ownOf(tid int) string {
	if own, err := proc.OwnOfThread(l.pid, tid); err != nil || own != "" {
		return own
	}
	for _, kind := range []string{"mnt", "net", "ipc", "uts", "cgroup"} {
		if its := namespaceOf(strconv.Itoa(tid), kind); its != "" && its != l.spaces[kind] {
			return "a namespace (" + its + ")"
		}
	}
	return ""
}

var timerThread = regexp.MustCompile(`(?m)^notify: \w+/tid\.(\d+)$`)

func (l *look) orphanTimer(found found) {
	for _, match := range timerThread.FindAllStringSubmatch(readText("/proc/%d/timers", l.pid), -1) {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/task/%s", l.pid, match[1])); errors.Is(err, os.ErrNotExist) {
			found("has a timer that signals its thread "+match[1]+", which has ended"+neverRestored, "let the program delete the timer (timer_delete)")
			return
		}
	}
}

// notRestored warns of what is restored without something that the program may miss.
func (l *look) notRestored(found found) {
	for _, f := range l.open {
		if !f.removed() || f.kind() != unix.S_IFREG {
			continue
		}
		names := make([]byte, 1<<16) // as long as the kernel lets it be
		n, _ := unix.Listxattr(f.path(), names)
		for name := range strings.SplitSeq(string(names[:max(n, 0)]), "\x00") {
			if strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "trusted.") {
				found(fmt.Sprintf("has %s open (descriptor %s), which loses its extended attributes at a restore, such as %s",
					f.link, f.number, name), "")
				return
			}
		}
	}
	if l.status.Locked == 0 {
		return
	}
	if bytes, err := proc.UntouchedLocks(l.pid); err == nil && bytes > 0 {
		found("has locked memory on fault (mlock2), of which "+units.Size(int64(bytes))+" are not in use, and will be after a restore", "")
	}
}

// oddFile finds one open file or directory that criu would not restore.
func (l *look) oddFile(found found) {
	for _, f := range l.open {
		if why, remedy := f.unrestorable(); why != "" {
			found(fmt.Sprintf("has %s open (descriptor %s)%s", f.link, f.number, why)+neverRestored, remedy)
			return
		}
	}
	for _, f := range l.own {
		if why := l.ofProcess(f.link); why != "" && f.at != "exe" {
			found(fmt.Sprintf("has %s %s%s", f.link, f.how, why)+neverRestored, "let the job change to another directory")
			return
		}
	}
}

// unrestorable says what criu would not restore of an open file.
func (f *file) unrestorable() (why, remedy string) {
	if f.link == "anon_inode:[eventpoll]" {
		if closed := f.closedDuplicate(); closed != "" {
			return ", an epoll set that contains one file twice, the second time by the closed descriptor " + closed,
				"let the program remove a descriptor from the set before it closes it"
		}
		return "", ""
	}
	if f.link == "anon_inode:[eventfd]" && f.info().Field("eventfd-semaphore") == "1" {
		return ", a semaphore (EFD_SEMAPHORE), of which a read would take everything after a restore", "run the job without it"
	}
	if why := f.of.ofProcess(f.link); why != "" {
		return why, ""
	}
	reads, writes := f.info().Access()
	if reads && !writes {
		return "", ""
	}
	kind, fixed := f.kind(), f.stat().Attributes
	onlyPath := strings.HasPrefix(f.link, "/memfd:") || terminal.MatchString(f.link) || kind == unix.S_IFIFO || kind == unix.S_IFSOCK || strings.HasPrefix(f.link, "anon_inode:")
	appended := fixed&unix.STATX_ATTR_APPEND != 0 && f.info().Flags&unix.O_APPEND == 0
	switch {
	case kind == 0: // closed in the meantime
	case !writes && onlyPath:
		return " with O_PATH", ""
	case writes && kind == unix.S_IFREG && (fixed&unix.STATX_ATTR_IMMUTABLE != 0 || appended):
		return " for writing, which can no longer be opened for writing (chattr)", "chattr -i -a " + f.link
	}
	return "", ""
}

var processFile = regexp.MustCompile(`^/proc/(\d+)(?:/task/(\d+))?(/.*)?$`)

// ofProcess says why criu could not open a file of a process in /proc again: it opens files before
// it makes threads, and mistakes the name of a process's directory.
func (l *look) ofProcess(link string) string {
	match := processFile.FindStringSubmatch(link)
	if match == nil {
		return ""
	}
	owner, task, rest := match[1], match[2], match[3]
	status := readText("/proc/%d/root/proc/%s/status", l.pid, owner) // as the process sees it
	switch isThread := status != "" && !strings.Contains(status, "\nTgid:\t"+owner+"\n"); {
	case task != "" && task != owner || isThread:
		return ", a file of a thread"
	case task == "" && rest == "":
		return ", the directory of a process"
	}
	return ""
}

// closedDuplicate finds a file that an epoll set holds by two descriptors, one of which is
// closed; "" if there is none. criu puts a descriptor that is open in its place, and cannot add
// the same one twice.
func (f *file) closedDuplicate() (closed string) {
	set, _ := strconv.Atoi(f.number)
	seen, taken := make(map[int]int), make(map[int]bool)
	for _, line := range f.info().Fields("tfd") {
		var target int
		var inode uint64
		fields := strings.Fields(line) // 5 events: 19 data: 5 pos:0 ino:3c sdev:10
		if len(fields) < 7 {
			continue
		}
		_, _ = fmt.Sscanf(fields[0], "%d", &target)
		_, _ = fmt.Sscanf(fields[6], "ino:%x", &inode)
		is := func(fd int) bool {
			same, err := proc.InEpoll(f.of.pid, set, target, seen[target], fd)
			return err == nil && same
		}
		by := -1
		if is(target) {
			by = target
		} else {
			for _, other := range f.of.open {
				if fd, _ := strconv.Atoi(other.number); (by < 0 || fd < by) && other.stat().Ino == inode && is(fd) {
					by = fd
				}
			}
			closed = fields[0]
		}
		seen[target]++
		if by >= 0 && taken[by] {
			return closed
		}
		taken[by] = true
	}
	return ""
}

// sealedMemory finds shared memory that was mapped after it had been sealed against writing. criu
// maps it first, and nobody can seal it then.
func (l *look) sealedMemory(found found) {
	for _, m := range l.mapped {
		if !m.shared || !strings.HasPrefix(m.link, "/memfd:") {
			continue
		}
		file, err := os.OpenFile(m.path(), os.O_RDONLY|unix.O_NONBLOCK, 0) // it waits for no lease
		if err != nil {
			continue // it was unmapped
		}
		seals, err := unix.FcntlInt(file.Fd(), unix.F_GET_SEALS, 0)
		file.Close()
		if err == nil && seals&unix.F_SEAL_WRITE != 0 {
			found(fmt.Sprintf("has shared memory mapped at %x-%x that is sealed against writing (memfd, F_SEAL_WRITE)", m.Start, m.End)+neverRestored, "let the job map it MAP_PRIVATE, or seal it with F_SEAL_FUTURE_WRITE")
			return
		}
	}
}

// highDescriptor finds a descriptor above which criu has no room for its own: a restore needs 32, below
// its limit, which it raises if it may. valgrind takes the highest that there are.
func (l *look) highDescriptor(found found) {
	highest := 0
	for _, f := range l.open {
		number, _ := strconv.Atoi(f.number)
		highest = max(highest, number)
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return
	}
	capabilities, _ := proc.Capabilities() // none if that cannot be told
	if text := readText("/proc/sys/fs/nr_open"); text != "" && capabilities&(1<<unix.CAP_SYS_RESOURCE) != 0 {
		limit.Max, _ = strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	}
	if uint64(highest)+32 > limit.Max&^127 {
		found(fmt.Sprintf("has a descriptor, %d, too close to the limit of %d", highest, limit.Max)+neverRestored, "start the job with a lower limit (ulimit -n)")
	}
}

// isUnlinked reports whether this is an unlinked file of a file system. criu has other ways for
// memory that only looks like one.
func (f *file) isUnlinked() bool {
	return f.removed() && !slices.ContainsFunc([]string{"/memfd:", "/dev/zero", "/SYSV", "/[aio]", "/secretmem", "/anon_hugepage", "/dev/nvidia"}, func(prefix string) bool {
		return strings.HasPrefix(f.link, prefix)
	})
}

// removedFindings refuses removed files and directories whose names criu could not use for the
// moment of a restore: it makes them again by their old names, and then removes them.
func (s *snapshot) removedFindings() preflight.Findings {
	var findings preflight.Findings
	known := make(map[string]uint64) // inodes of removed directories
	for _, l := range s.looks {
		for _, f := range slices.Concat(l.own, l.open) {
			isProgram := f.at == "exe"
			if !f.isUnlinked() || isProgram || strings.HasPrefix(f.link, "/proc/") || f.kind() == 0 || f.stat().Nlink > 0 && f.kind() != unix.S_IFDIR {
				continue
			}
			if why := f.unusable(known); why != "" {
				findings = append(findings, l.about(preflight.New(preflight.FindingUnrestorable, fmt.Sprintf("has %s %s, which was removed, and criu could not restore it: %s", f.name(), f.how, why),
					"let the job close or leave it, or rename what is in its place")))
			}
		}
	}
	return findings
}

// unusable says why a removed name cannot be used again; "" if it can.
func (f *file) unusable(known map[string]uint64) string {
	at := f.name()
	if !f.of.inOurs("mnt") {
		at = filepath.Join("/proc", strconv.Itoa(f.of.pid), "root", at)
	}
	parent, err := os.Stat(filepath.Dir(at))
	if errors.Is(err, unix.ENOTDIR) || err == nil && !parent.IsDir() {
		return "a part of its path is no longer a directory"
	}
	if len(filepath.Base(at)) > 235 { // criu appends ".cr.ID.ghost"
		return "its name is too long"
	}
	if f.kind() != unix.S_IFDIR {
		return ""
	}
	if _, err := os.Lstat(at); err == nil {
		return "another file has this name now"
	}
	if other, is := known[at]; is && other != f.stat().Ino {
		return "another removed file has the same name"
	}
	known[at] = f.stat().Ino
	return ""
}
