package preflight

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
)

// What criu 4.2 dumps of what processes have open, by its source and as it was tried. Everything
// else is refused, whether or not it is known here.
var (
	dumpableInodes    = []string{"[eventfd]", "[eventpoll]", "inotify", "[fanotify]", "[signalfd]", "[timerfd]", "[pidfd]"}
	dumpableClocks    = []string{"0", "1", "7"} // of timerfds: CLOCK_REALTIME, CLOCK_MONOTONIC and CLOCK_BOOTTIME
	dumpableProtocols = []string{
		"UNIX", "UNIX-STREAM", "TCP", "TCPv6", "UDP", "UDPv6", "UDP-Lite", "UDPLITEv6", "PING", "PINGv6", "RAW", "RAWv6", "PACKET", "NETLINK",
	}
	namespaceLink = regexp.MustCompile(`^[a-z]+:\[\d+\]$`)
)

var (
	zeroDevice = unix.Mkdev(1, 5)
	tunDevice  = unix.Mkdev(10, 200) // can be dumped if the job has a network namespace of its own
)

// isDumpable reports whether criu can dump a character device: memory, terminals, autofs.
func isDumpable(device uint64) bool {
	minor := unix.Minor(device)
	switch major := unix.Major(device); major {
	case 1, 136, 188, 204: // memory, pseudo terminals, serial lines
		return true
	case 4:
		return minor >= 1 && minor <= 63
	case 5:
		return minor <= 2
	case 10:
		return minor == 235 || device == tunDevice
	default:
		return major >= 128 && major < 136 // masters of pseudo terminals
	}
}

// unsupported is what criu cannot dump of what a process has open or mapped, and what it can dump
// only with the right tree around the process.
type unsupported struct {
	refusals   []usedFile
	mounts     map[string]usedFile // the mounts through which it uses files, each with one of them
	pidfds     map[string]usedFile // by the process
	namespaces []usedFile
	paths      []usedFile // open with O_PATH
	tun, sysV  bool       // it has a tun device, or SysV shared memory
}

// usedFile is an open or mapped file.
type usedFile struct {
	link string // or another name for what it is
	how  string // as people read it
	file string // the link in /proc
}

func (u *unsupported) refuse(kind, how string) {
	if !slices.ContainsFunc(u.refusals, func(r usedFile) bool { return r.link == kind }) {
		u.refusals = append(u.refusals, usedFile{link: kind, how: how})
	}
}

// finding says that criu cannot dump it.
func (r usedFile) finding(pid int) Finding {
	remedy := "let the job close it, or run it without"
	switch {
	case strings.Contains(r.link, "/dev/infiniband/"):
		remedy = "run the job without RDMA (NCCL_IB_DISABLE=1)"
	case strings.Contains(r.link, "MPTCP"):
		remedy = "let the job use plain TCP: Go programs do so with GODEBUG=multipathtcp=0, which cucriu run --dir sets"
	}
	return aboutProcess(pid, Finding{
		Name: FindingUnsupportedFile, Severity: SeverityError, Message: "has " + r.link + " " + r.how + ", which criu cannot dump", Remedy: remedy,
	})
}

// addDescriptor looks at a descriptor.
func (u *unsupported) addDescriptor(f openFile) {
	link := strings.TrimSuffix(f.link, " (deleted)")
	used := usedFile{link, "open (descriptor " + f.number + ")", f.path()}
	kind, name, _ := strings.Cut(link, ":")
	switch {
	case strings.HasPrefix(link, "/"):
		u.addFile(f, used)
	case kind == "pipe":
		if f.info().Flags&unix.O_DIRECT != 0 {
			u.refuse("a pipe in packet mode (O_DIRECT)", used.how)
		}
	case kind == "socket":
		protocol := make([]byte, 32)
		n, err := unix.Getxattr(used.file, "system.sockprotoname", protocol)
		if name := string(bytes.TrimRight(protocol[:max(n, 0)], "\x00")); err == nil && !slices.Contains(dumpableProtocols, name) {
			u.refuse("a socket of protocol "+name, used.how)
		}
	case link == ioURing: // a finding of its own
	case kind == "anon_inode" && name == "[timerfd]":
		if clock := f.info().Field("clockid"); clock != "" && !slices.Contains(dumpableClocks, clock) {
			u.refuse("a timer of clock "+clock+" (8 is CLOCK_REALTIME_ALARM, 9 CLOCK_BOOTTIME_ALARM)", used.how)
		}
	case kind == "anon_inode" && name == "[pidfd]":
		u.addPidfd(f.info(), used)
	case kind == "anon_inode" && slices.Contains(dumpableInodes, name):
	case namespaceLink.MatchString(link):
		u.namespaces = append(u.namespaces, used)
	default:
		u.refuse(link, used.how)
	}
}

func (u *unsupported) addPidfd(info proc.DescriptorInfo, used usedFile) {
	if info.Flags&unix.O_EXCL != 0 { // PIDFD_THREAD
		u.refuse("a pidfd of a thread", used.how)
	}
	if pid := info.Field("Pid"); pid != "-1" { // else it has ended
		u.pidfds[pid] = used
	}
}

// addFile looks at an open file. Devices are looked for where they usually are.
func (u *unsupported) addFile(f openFile, used usedFile) {
	if strings.Contains(used.link, "/dev/") {
		switch kind, device, _ := fileOf(used.file); {
		case kind == unix.S_IFCHR && nvidiaDevice.MatchString(used.link):
			return
		case kind == unix.S_IFBLK || kind == unix.S_IFCHR && !isDumpable(device):
			u.refuse(used.link, used.how)
			return
		case kind == unix.S_IFCHR && unix.Major(device) != 1:
			u.tun = u.tun || device == tunDevice
			return // a terminal may be that of another mount namespace
		}
	}
	info := f.info()
	if info.Flags&unix.O_PATH != 0 {
		u.paths = append(u.paths, used)
	}
	u.mounts[info.Field("mnt_id")] = used
}

// addMapping looks at a mapping, by its addresses and its name in /proc/PID/maps.
func (u *unsupported) addMapping(pid int, addresses, name string) {
	link, deleted := strings.CutSuffix(name, " (deleted)")
	used := usedFile{link, "mapped", filepath.Join("/proc", strconv.Itoa(pid), "map_files", addresses)}
	kind, device, mount := uint16(0), uint64(0), ""
	if deleted || strings.Contains(link, "/dev/") {
		kind, device, mount = fileOf(used.file)
	}
	switch {
	case link == "/[aio]" || nvidiaDevice.MatchString(link) || link == ioURing:
	case strings.HasPrefix(link, "anon_inode:"), link == "[uprobes]":
		u.refuse(link, used.how)
	case deleted:
		u.sysV = u.sysV || strings.HasPrefix(link, "/SYSV")
		u.mounts[mount] = used
	case kind == unix.S_IFCHR && device != zeroDevice:
		u.refuse(link, used.how)
	}
}

// fileOf looks at the file of a link in /proc, and does not wait for the server of its file system.
// The result is empty if the file is used no longer.
func fileOf(link string) (mode uint16, device uint64, mount string) {
	var stat unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE|unix.STATX_MNT_ID, &stat) != nil {
		return 0, 0, ""
	}
	if stat.Mask&unix.STATX_MNT_ID != 0 { // Linux has it from 5.8 on
		mount = strconv.FormatUint(stat.Mnt_id, 10)
	}
	return stat.Mode & unix.S_IFMT, unix.Mkdev(stat.Rdev_major, stat.Rdev_minor), mount
}

// memoryMount is the mount of shared memory without a name (memfd, SysV). No namespace shows it.
var memoryMount = sync.OnceValue(func() string {
	fd, err := unix.MemfdCreate("cucriu", unix.MFD_CLOEXEC)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	_, _, mount := fileOf("/proc/self/fd/" + strconv.Itoa(fd))
	return mount
})

// inOurs reports whether a process is in our namespace of a kind, which is criu's, too.
func inOurs(pid int, kind string) bool {
	theirs, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "ns", kind))
	ours, ownErr := os.Readlink(filepath.Join("/proc/self/ns", kind))
	return err == nil && ownErr == nil && theirs == ours
}

// unsupportedFindings refuses what criu cannot dump of what the processes of a tree have open or
// mapped. The root is the first of them.
func unsupportedFindings(processes []ProcessInspection) Findings {
	programs, inTree := make(map[string]bool), make(map[string]bool)
	mounts := mountsOf(processes[0].pid)
	for _, p := range processes {
		inTree[strconv.Itoa(p.pid)], programs[p.held.program] = true, true
	}
	var findings Findings
	for _, p := range processes {
		u := p.held.unsupported
		for pid, used := range u.pidfds {
			if !inTree[pid] {
				u.refuse("a pidfd of a process outside of the tree", used.how)
			}
		}
		for _, used := range u.namespaces {
			kind, _, _ := strings.Cut(used.link, ":")
			if of, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(p.pid), "ns", kind)); err == nil && of != used.link {
				u.refuse(used.link+", a namespace of other processes,", used.how)
			}
		}
		for _, used := range u.paths {
			if programs[used.link] {
				findings = append(findings, aboutProcess(p.pid, Finding{
					Name: FindingUnrestorable, Severity: SeverityError, Remedy: "let the job close it",
					Message: "has the program " + used.link + " of a process " + used.how + " with O_PATH, which criu dumps and never restores",
				}))
			}
		}
		for mount, used := range u.mounts {
			// What is in another mount namespace than the root is refused for that.
			if mounts != nil && !mounts[mount] && p.mounts == processes[0].mounts && !hasHugePages(used) {
				u.refuse(used.link, used.how+" through a mount ("+mount+") that is not in its mount namespace")
			}
		}
		if u.tun && inOurs(p.pid, "net") {
			u.refuse("a tun device", "open, and no network namespace of its own")
		}
		if u.sysV && inOurs(p.pid, "ipc") {
			u.refuse("SysV shared memory", "attached, and no ipc namespace of its own")
		}
		for _, r := range u.refusals {
			findings = append(findings, r.finding(p.pid))
		}
	}
	return findings
}

// mountsOf returns the ids of the mounts in the namespace of a process.
func mountsOf(pid int) map[string]bool {
	reader := strconv.Itoa(pid)
	if inOurs(pid, "mnt") {
		reader = "self" // the process may not see all of them (chroot)
	}
	text, err := os.ReadFile(filepath.Join("/proc", reader, "mountinfo"))
	if err != nil {
		return nil // it has ended
	}
	ids := map[string]bool{"": true, memoryMount(): true}
	for line := range strings.Lines(string(text)) {
		id, _, _ := strings.Cut(line, " ")
		ids[id] = true
	}
	return ids
}

// hasHugePages reports whether a file is memory in huge pages that criu will know as such: it
// maps a page of each size, and does without the sizes of which there is none.
func hasHugePages(used usedFile) bool {
	var fs unix.Statfs_t
	if !strings.HasPrefix(used.link, "/memfd:") && used.link != "/anon_hugepage" || unix.Statfs(used.file, &fs) != nil || fs.Type != unix.HUGETLBFS_MAGIC {
		return false
	}
	var log2 int
	for size := fs.Bsize; size > 1; size >>= 1 {
		log2++
	}
	page, err := unix.Mmap(-1, 0, int(fs.Bsize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB|log2<<unix.MAP_HUGE_SHIFT)
	if err != nil {
		return false
	}
	return unix.Munmap(page) == nil
}
