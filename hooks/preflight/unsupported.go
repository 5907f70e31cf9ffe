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

// unsupported collects what criu cannot dump of what a process has open or mapped: one finding for
// each kind.
type unsupported struct {
	*look
	findings Findings
	kinds    map[string]bool // those refused, and mounts
	programs map[string]bool // of the tree
	inTree   map[string]bool // the tree's pids
	mounts   map[string]bool // those of the root, if the process has the same; else nil
}

// unsupportedFindings refuses what criu cannot dump of what the processes of a tree have open or
// mapped. The root is the first of them.
func (t *tree) unsupportedFindings() Findings {
	if len(t.looks) == 0 {
		return nil
	}
	root := t.looks[0]
	programs, inTree, mounts := make(map[string]bool), make(map[string]bool), root.mounts()
	for _, l := range t.looks {
		inTree[strconv.Itoa(l.pid)], programs[l.program()] = true, true
	}
	var findings Findings
	for _, l := range t.looks {
		u := unsupported{look: l, kinds: make(map[string]bool), programs: programs, inTree: inTree}
		// What is in another mount namespace than the root is refused for that.
		if root.namespace("mnt") == l.namespace("mnt") {
			u.mounts = mounts
		}
		for _, m := range l.mapped {
			u.addMapping(m.file)
		}
		for _, f := range l.open {
			u.addDescriptor(f)
		}
		for _, f := range l.own {
			switch {
			case f.link == tooLong:
				u.refuse(f.link, f.how)
			case f.at == "exe":
				u.used(f, f.mount())
			}
		}
		findings = append(findings, u.findings...)
	}
	return findings
}

// refuse says that criu cannot dump a kind of file.
func (u *unsupported) refuse(kind, how string) {
	if u.kinds[kind] {
		return
	}
	u.kinds[kind] = true
	remedy := "let the job close it, or run it without"
	switch {
	case strings.Contains(kind, "/dev/infiniband/"):
		remedy = "run the job without RDMA (NCCL_IB_DISABLE=1)"
	case strings.Contains(kind, "MPTCP"):
		remedy = "let the job use plain TCP: Go programs do so with GODEBUG=multipathtcp=0, which cucriu run --dir sets"
	}
	u.findings = append(u.findings, u.about(refuse(FindingUnsupportedFile, "has "+kind+" "+how+", which criu cannot dump", remedy)))
}

// addDescriptor looks at a descriptor.
func (u *unsupported) addDescriptor(f *file) {
	kind, name, _ := strings.Cut(f.name(), ":")
	switch {
	case strings.HasPrefix(f.link, "/"):
		u.addFile(f)
	case kind == "pipe":
		if f.info().Flags&unix.O_DIRECT != 0 {
			u.refuse("a pipe in packet mode (O_DIRECT)", f.how)
		}
	case kind == "socket":
		protocol := make([]byte, 32)
		n, err := unix.Getxattr(f.path(), "system.sockprotoname", protocol)
		if name := string(bytes.TrimRight(protocol[:max(n, 0)], "\x00")); err == nil && !slices.Contains(dumpableProtocols, name) {
			u.refuse("a socket of protocol "+name, f.how)
		}
	case f.link == ioURing: // a finding of its own
	case kind == "anon_inode" && name == "[timerfd]":
		if clock := f.info().Field("clockid"); clock != "" && !slices.Contains(dumpableClocks, clock) {
			u.refuse("a timer of clock "+clock+" (8 is CLOCK_REALTIME_ALARM, 9 CLOCK_BOOTTIME_ALARM)", f.how)
		}
	case kind == "anon_inode" && name == "[pidfd]":
		if f.info().Flags&unix.O_EXCL != 0 { // PIDFD_THREAD
			u.refuse("a pidfd of a thread", f.how)
		}
		if pid := f.info().Field("Pid"); pid != "" && pid != "-1" && !u.inTree[pid] { // else it has ended
			u.refuse("a pidfd of a process outside of the tree", f.how)
		}
	case kind == "anon_inode" && slices.Contains(dumpableInodes, name):
	case namespaceLink.MatchString(f.link):
		if of := u.namespace(kind); of != "" && of != f.link {
			u.refuse(f.link+", a namespace of other processes,", f.how)
		}
	default:
		u.refuse(f.name(), f.how)
	}
}

// addFile looks at an open file. Devices are looked for where they usually are.
func (u *unsupported) addFile(f *file) {
	if strings.Contains(f.link, "/dev/") {
		switch kind := f.kind(); {
		case kind == unix.S_IFCHR && nvidiaDevice.MatchString(f.name()):
			return
		case kind == unix.S_IFBLK || kind == unix.S_IFCHR && !isDumpable(f.device()):
			u.refuse(f.name(), f.how)
			return
		case kind == unix.S_IFCHR && f.device() == tunDevice && u.inOurs("net"):
			u.refuse("a tun device", "open, and no network namespace of its own")
			return
		case kind == unix.S_IFCHR && unix.Major(f.device()) != 1:
			return // a terminal may be that of another mount namespace
		}
	}
	if f.info().Flags&unix.O_PATH != 0 && u.programs[f.name()] {
		u.findings = append(u.findings, u.about(refuse(FindingUnrestorable, "has the program "+f.name()+" of a process "+f.how+" with O_PATH, which criu dumps and never restores",
			"let the job close it")))
	}
	u.used(f, f.info().Field("mnt_id"))
}

// addMapping looks at a mapping.
func (u *unsupported) addMapping(f *file) {
	switch {
	case f.name() == "/[aio]" || f.name() == ioURing || strings.Contains(f.link, "/dev/nvidia") && nvidiaDevice.MatchString(f.name()):
	case strings.HasPrefix(f.link, "anon_inode:"), f.link == "[uprobes]":
		u.refuse(f.name(), f.how)
	case f.removed():
		if strings.HasPrefix(f.link, "/SYSV") && u.inOurs("ipc") {
			u.refuse("SysV shared memory", "attached, and no ipc namespace of its own")
		}
		u.used(f, f.mount())
	case strings.Contains(f.link, "/dev/") && f.kind() == unix.S_IFCHR && f.device() != zeroDevice:
		u.refuse(f.name(), f.how)
	}
}

// used looks at the mount through which a file is used.
func (u *unsupported) used(f *file, mount string) {
	if u.mounts != nil && !u.mounts[mount] && !u.kinds[mount] && !f.hasHugePages() {
		u.kinds[mount] = true
		u.refuse(f.name(), f.how+" through a mount ("+mount+") that is not in its mount namespace")
	}
}

// memoryMount is the mount of shared memory without a name (memfd, SysV). No namespace shows it.
var memoryMount = sync.OnceValue(func() string {
	fd, err := unix.MemfdCreate("cucriu", unix.MFD_CLOEXEC)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var stat unix.Statx_t
	_ = unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &stat)
	return (&file{statted: &stat}).mount()
})

// mounts returns the ids of the mounts in the namespace of the process; nil if it has ended.
func (l *look) mounts() map[string]bool {
	reader := strconv.Itoa(l.pid)
	if l.inOurs("mnt") {
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
func (f *file) hasHugePages() bool {
	var fs unix.Statfs_t
	if !strings.HasPrefix(f.link, "/memfd:") && f.name() != "/anon_hugepage" || unix.Statfs(f.path(), &fs) != nil || fs.Type != unix.HUGETLBFS_MAGIC {
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
