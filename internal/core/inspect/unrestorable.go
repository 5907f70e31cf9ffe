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
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/units"
)

// This file finds what criu puts into an image without an error and never restores. Each of these
// was tried with criu 4.2.

const neverRestored = ", which criu dumps but cannot restore"

func programInMemory(p *inventory.Process, found found) {
	if program := p.Program(); strings.HasPrefix(program, "/memfd:") {
		found("executes a program from memory, "+program+neverRestored, "run the program from a file")
	}
}

func programByPath(p *inventory.Process, found found) {
	for _, f := range p.Open() {
		if strings.HasPrefix(f.Link, "/") && f.Info().Flags&unix.O_PATH != 0 && p.Of.Executes(f.Name()) {
			found("has the program "+f.Name()+" of a process "+how(f)+" with O_PATH"+neverRestored, "")
		}
	}
}

// restorablePolicies leaves out SCHED_DEADLINE and SCHED_EXT.
var restorablePolicies = []uint32{0, 1, 2, 3, 5} // SCHED_OTHER, FIFO, RR, BATCH and IDLE

// oddThread finds a thread that criu does not restore as it is. To criu, all threads of a process
// are in the namespaces of the first one, and have its descriptors and its working directory.
func oddThread(p *inventory.Process, found found) {
	for _, tid := range p.Threads() {
		if attr, err := unix.SchedGetAttr(tid, 0); err == nil && !slices.Contains(restorablePolicies, attr.Policy) {
			found(fmt.Sprintf("has a thread, %d, with the scheduling policy %d", tid, attr.Policy)+neverRestored, fmt.Sprintf("chrt --other --pid 0 %d", tid))
			return
		}
		own := ""
		if tid != p.PID && lasts(func() bool { own = ownOf(p, tid); return own != "" }) {
			found(fmt.Sprintf("has a thread, %d, with %s of its own", tid, own)+neverRestored, "run the job without the code that calls unshare(2) or setns(2) in a thread")
			return
		}
	}
}

// ownOf names what a thread does not share with its process; "" if it shares everything. A thread
// that is just ending shares nothing.
func ownOf(p *inventory.Process, tid int) string {
	if own, err := proc.OwnOfThread(p.PID, tid); err != nil || own != "" {
		return own
	}
	for _, kind := range []string{"mnt", "net", "ipc", "uts", "cgroup"} {
		if its := inventory.NamespaceOfProcess(tid, kind); its != "" && its != p.Namespace(kind) {
			return "a namespace (" + its + ")"
		}
	}
	return ""
}

var timerThread = regexp.MustCompile(`(?m)^notify: \w+/tid\.(\d+)$`)

func orphanTimer(p *inventory.Process, found found) {
	for _, match := range timerThread.FindAllStringSubmatch(readText("/proc/%d/timers", p.PID), -1) {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/task/%s", p.PID, match[1])); errors.Is(err, os.ErrNotExist) {
			found("has a timer that signals its thread "+match[1]+", which has ended"+neverRestored, "let the program delete the timer (timer_delete)")
			return
		}
	}
}

// notRestored warns of what is restored without something that the program may miss.
func notRestored(p *inventory.Process, found found) {
	for _, f := range p.Open() {
		if !f.Removed() || f.Kind() != unix.S_IFREG {
			continue
		}
		names := make([]byte, 1<<16) // as long as the kernel lets it be
		n, _ := unix.Listxattr(f.Path(), names)
		for name := range strings.SplitSeq(string(names[:max(n, 0)]), "\x00") {
			if strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "trusted.") {
				found(fmt.Sprintf("has %s open (descriptor %s), which loses its extended attributes at a restore, such as %s",
					f.Link, f.Number, name), "")
				return
			}
		}
	}
	if p.Status().Locked == 0 {
		return
	}
	if bytes, err := proc.UntouchedLocks(p.PID); err == nil && bytes > 0 {
		found("has locked memory on fault (mlock2), of which "+units.Size(int64(bytes))+" are not in use, and will be after a restore", "")
	}
}

// oddFile finds one open file or directory that criu would not restore.
func oddFile(p *inventory.Process, found found) {
	for _, f := range p.Open() {
		if why, remedy := unrestorable(f); why != "" {
			found(fmt.Sprintf("has %s open (descriptor %s)%s", f.Link, f.Number, why)+neverRestored, remedy)
			return
		}
	}
	for _, f := range p.Links() {
		if why := ofProcess(p, f.Link); why != "" && f.At != inventory.AtProgram {
			found(fmt.Sprintf("has %s %s%s", f.Link, how(f), why)+neverRestored, "let the job change to another directory")
			return
		}
	}
}

// unrestorable says what criu would not restore of an open file.
func unrestorable(f *inventory.File) (why, remedy string) {
	if f.Link == "anon_inode:[eventpoll]" {
		if closed := closedDuplicate(f); closed != "" {
			return ", an epoll set that contains one file twice, the second time by the closed descriptor " + closed,
				"let the program remove a descriptor from the set before it closes it"
		}
		return "", ""
	}
	if f.Link == "anon_inode:[eventfd]" && f.Info().Field("eventfd-semaphore") == "1" {
		return ", a semaphore (EFD_SEMAPHORE), of which a read would take everything after a restore", "run the job without it"
	}
	if why := ofProcess(f.Of, f.Link); why != "" {
		return why, ""
	}
	reads, writes := f.Info().Access()
	if reads && !writes {
		return "", ""
	}
	kind, fixed := f.Kind(), f.Stat().Attributes
	onlyPath := strings.HasPrefix(f.Link, "/memfd:") || strings.HasPrefix(f.Link, "anon_inode:") ||
		terminal.MatchString(f.Link) || kind == unix.S_IFIFO || kind == unix.S_IFSOCK
	appended := fixed&unix.STATX_ATTR_APPEND != 0 && f.Info().Flags&unix.O_APPEND == 0
	switch {
	case kind == 0: // closed in the meantime
	case !writes && onlyPath:
		return " with O_PATH", ""
	case writes && kind == unix.S_IFREG && (fixed&unix.STATX_ATTR_IMMUTABLE != 0 || appended):
		return " for writing, which can no longer be opened for writing (chattr)", "chattr -i -a " + f.Link
	}
	return "", ""
}

var processFile = regexp.MustCompile(`^/proc/(\d+)(?:/task/(\d+))?(/.*)?$`)

// ofProcess says why criu could not open a file of a process in /proc again: it opens files before
// it makes threads, and mistakes the name of a process's directory.
func ofProcess(p *inventory.Process, link string) string {
	match := processFile.FindStringSubmatch(link)
	if match == nil {
		return ""
	}
	owner, task, rest := match[1], match[2], match[3]
	status := readText("/proc/%d/root/proc/%s/status", p.PID, owner) // as the process sees it
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
func closedDuplicate(f *inventory.File) (closed string) {
	set, _ := strconv.Atoi(f.Number)
	seen, taken := make(map[int]int), make(map[int]bool)
	for _, line := range f.Info().Fields("tfd") {
		var target int
		var inode uint64
		fields := strings.Fields(line) // 5 events: 19 data: 5 pos:0 ino:3c sdev:10
		if len(fields) < 7 {
			continue
		}
		_, _ = fmt.Sscanf(fields[0], "%d", &target)
		_, _ = fmt.Sscanf(fields[6], "ino:%x", &inode)
		is := func(fd int) bool {
			same, err := proc.InEpoll(f.Of.PID, set, target, seen[target], fd)
			return err == nil && same
		}
		by := -1
		if is(target) {
			by = target
		} else {
			for _, other := range f.Of.Open() {
				if fd, _ := strconv.Atoi(other.Number); (by < 0 || fd < by) && other.Stat().Ino == inode && is(fd) {
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
func sealedMemory(p *inventory.Process, found found) {
	for _, m := range p.Mapped() {
		if !m.Shared || !strings.HasPrefix(m.Link, "/memfd:") {
			continue
		}
		file, err := os.OpenFile(m.Path(), os.O_RDONLY|unix.O_NONBLOCK, 0) // it waits for no lease
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
func highDescriptor(p *inventory.Process, found found) {
	highest := 0
	for _, f := range p.Open() {
		number, _ := strconv.Atoi(f.Number)
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

// removedFindings refuses removed files and directories whose names criu could not use for the
// moment of a restore: it makes them again by their old names, and then removes them.
func (s *snapshot) removedFindings() preflight.Findings {
	var findings preflight.Findings
	known := make(map[string]uint64) // inodes of removed directories
	for _, p := range s.Processes {
		for _, f := range slices.Concat(p.Links(), p.Open()) {
			if !f.Unlinked() || f.At == inventory.AtProgram || strings.HasPrefix(f.Link, "/proc/") {
				continue
			}
			if f.Kind() == 0 || f.Stat().Nlink > 0 && f.Kind() != unix.S_IFDIR {
				continue
			}
			if why := unusable(f, known); why != "" {
				findings = append(findings, about(p, preflight.New(preflight.FindingUnrestorable,
					fmt.Sprintf("has %s %s, which was removed, and criu could not restore it: %s", f.Name(), how(f), why),
					"let the job close or leave it, or rename what is in its place")))
			}
		}
	}
	return findings
}

// unusable says why a removed name cannot be used again; "" if it can.
func unusable(f *inventory.File, known map[string]uint64) string {
	at := f.Name()
	if !f.Of.InOurs("mnt") {
		at = filepath.Join("/proc", strconv.Itoa(f.Of.PID), "root", at)
	}
	parent, err := os.Stat(filepath.Dir(at))
	if errors.Is(err, unix.ENOTDIR) || err == nil && !parent.IsDir() {
		return "a part of its path is no longer a directory"
	}
	if len(filepath.Base(at)) > 235 { // criu appends ".cr.ID.ghost"
		return "its name is too long"
	}
	if f.Kind() != unix.S_IFDIR {
		return ""
	}
	if _, err := os.Lstat(at); err == nil {
		return "another file has this name now"
	}
	if other, is := known[at]; is && other != f.Stat().Ino {
		return "another removed file has the same name"
	}
	known[at] = f.Stat().Ino
	return ""
}
