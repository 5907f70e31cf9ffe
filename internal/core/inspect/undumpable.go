package inspect

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
)

// traced finds a thread that another process traces. A tracer may trace any single thread.
func traced(p *inventory.Process, found found) {
	for _, tid := range p.Threads() {
		status, err := proc.ReadStatus(tid)
		if err != nil || status.TracerPID == 0 || status.TracerPID == os.Getpid() {
			continue
		}
		of := "is"
		if tid != p.PID {
			of = "has a thread, " + strconv.Itoa(tid) + ", that is"
		}
		found(of+" traced by "+processName(status.TracerPID)+" (a debugger?), and a dump or suspend must trace it itself", "")
		return
	}
}

// ioURing is what an io_uring is called where it is open or mapped.
const ioURing = "anon_inode:[io_uring]"

// ringUser is a library that uses an io_uring if it can. uvloop, Node.js and some builds of PyTorch
// have libuv inside.
var ringUser = regexp.MustCompile(`/(liburing|libuv|libtorch_cpu)[^/]*\.so[^/]*$|/uvloop/[^/]+\.so$|/node(js)?$`)

func ring(p *inventory.Process, found found) {
	isRing := func(f *inventory.File) bool { return f.Link == ioURing }
	if !slices.Contains(p.MappedNames(), ioURing) && !slices.ContainsFunc(p.Open(), isRing) {
		return
	}
	message := "has an io_uring, which criu cannot dump"
	if users := p.MappedMatching(ringUser); len(users) > 0 {
		message += fmt.Sprintf(" (%s may have made it)", strings.Join(users, " or "))
	}
	found(message, "")
}

func foreign(p *inventory.Process, found found) {
	capabilities, _ := proc.Capabilities() // none if that cannot be told
	if of := foreignTo(p.Status(), os.Getuid(), os.Getgid(), capabilities); of != "" && p.InOurs("user") {
		found("belongs to "+of+", and criu reads the limits of another user's process only with CAP_SYS_RESOURCE, which this process lacks", "")
	}
}

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

// memoryPolicy warns of one that is not set again, because nobody is there at the restore of a job without CUDA.
func memoryPolicy(p *inventory.Process, found found) {
	usesCUDA := func(o *inventory.Process) bool { return o.Driver().Libcuda && len(o.Driver().Devices) > 0 }
	if p.Of != nil && slices.ContainsFunc(p.Of.Processes, usesCUDA) {
		return
	}
	if policy := proc.MemoryPolicy(p.PID); policy != "" {
		found("has the NUMA memory policy "+policy+", which a restore does not set again", "")
	}
}

// otherNamespace refuses a process in other namespaces than the root. criu dumps such mount and
// network namespaces alone, and restores them only if the root, too, is in another one than criu, as
// in a container. criu is in our namespaces.
func otherNamespace(p *inventory.Process, found found) {
	root := p.Of.Processes[0]
	if p == root && p.Namespace("user") != inventory.NamespaceOf("self", "user") && p.InOurs("mnt") {
		found("is in a user namespace of its own ("+p.Namespace("user")+"), but not in a mount namespace, "+
			"and criu could not make the mounts that a restore needs there",
			"run the job without the user namespace")
	}
	for _, kind := range inventory.NamespaceKinds {
		common, _, _ := strings.Cut(kind, "_") // pid_for_children is a pid namespace, too
		its, roots, ours := p.Namespace(kind), root.Namespace(common), inventory.NamespaceOf("self", common)
		nests := (kind == "mnt" || kind == "net") && roots != ours && its != ours
		if its != "" && roots != "" && its != roots && !nests { // else one of them has ended
			found(fmt.Sprintf("is in a different namespace (%s) than the root of the tree (%s), and criu could not restore it there", its, roots), "")
			return
		}
	}
}

// What criu 4.2 dumps of what processes have open, by its source and as it was tried. Any other anonymous
// inode, clock, protocol and device is refused, whether or not it is known here.
var (
	dumpableInodes    = []string{"[eventfd]", "[eventpoll]", "inotify", "[fanotify]", "[signalfd]", "[timerfd]", "[pidfd]"}
	dumpableClocks    = []string{"0", "1", "7"} // of timerfds: CLOCK_REALTIME, CLOCK_MONOTONIC and CLOCK_BOOTTIME
	dumpableProtocols = []string{
		"UNIX", "UNIX-STREAM", "TCP", "TCPv6", "UDP", "UDPv6", "UDP-Lite", "UDPLITEv6", "PING", "PINGv6", "RAW", "RAWv6", "PACKET", "NETLINK",
	}
	namespaceLink = regexp.MustCompile(`^[a-z]+:\[\d+\]$`)

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

// unsupportedFiles finds what criu cannot dump of what the process has open or mapped, each kind
// once.
func unsupportedFiles(p *inventory.Process, found found) {
	kinds := make(map[string]bool)
	refuse := func(kind string, f *inventory.File) {
		key, _, _ := strings.Cut(kind, ",") // what follows names the file
		if kind == "" || kinds[key] {
			return
		}
		kinds[key] = true
		has, remedy := "has "+kind+" "+how(f), ""
		switch {
		case strings.Contains(kind, "/dev/infiniband/"):
			remedy = "run the job without RDMA (NCCL_IB_DISABLE=1)"
		case key == foreignMount && f.Number != "":
			has = fmt.Sprintf("has descriptor %s (%s) on a mount that its namespace does not have "+
				"(opened before nsenter or unshare, or detached)", f.Number, f.Name())
			remedy = "start the job with it closed (" + f.Number + "<&-), or opened anew"
		case strings.Contains(kind, "MPTCP"):
			remedy = "let the job use plain TCP: Go programs do so with GODEBUG=multipathtcp=0, which cucriu run --dir sets"
		}
		found(has+", which criu cannot dump", remedy)
	}
	for _, m := range p.Mapped() {
		refuse(unsupportedMapping(m.File), m.File)
	}
	for _, f := range p.Open() {
		refuse(unsupportedDescriptor(f), f)
	}
	for _, f := range p.Links() {
		switch {
		case f.Link == inventory.TooLong:
			refuse(f.Link, f)
		case f.At == inventory.AtProgram:
			refuse(strangeMount(f, f.Mount()), f)
		}
	}
}

// guards finds descriptors by which the process controls who opens files: a dump and a restore open them.
func guards(p *inventory.Process, found found) {
	for _, f := range p.Open() {
		if g := proc.Guards(p.PID, f.Number, f.Link, f.Info); g != nil {
			found(g.What, g.Remedy)
			return
		}
	}
}

// unsupportedDescriptor says what criu cannot dump about a descriptor; "" if it can.
func unsupportedDescriptor(f *inventory.File) string {
	kind, name, _ := strings.Cut(f.Name(), ":")
	switch {
	case strings.HasPrefix(f.Link, "/"):
		return unsupportedFile(f)
	case f.Link == ioURing: // a finding of its own
	case kind == "pipe":
		if f.Info().Flags&unix.O_DIRECT != 0 {
			return "a pipe in packet mode (O_DIRECT)"
		}
	case kind == "socket":
		protocol := make([]byte, 32)
		n, err := unix.Getxattr(f.Path(), "system.sockprotoname", protocol)
		if name := string(bytes.TrimRight(protocol[:max(n, 0)], "\x00")); err == nil && !slices.Contains(dumpableProtocols, name) {
			return "a socket of protocol " + name
		} else if err == nil && name == "NETLINK" {
			return unsupportedNetlink(f)
		}
	case kind == "anon_inode" && name == "[timerfd]":
		if clock := f.Info().Field("clockid"); clock != "" && !slices.Contains(dumpableClocks, clock) {
			return "a timer of clock " + clock + " (8 is CLOCK_REALTIME_ALARM, 9 CLOCK_BOOTTIME_ALARM)"
		}
	case kind == "anon_inode" && name == "[pidfd]":
		if f.Info().Flags&unix.O_EXCL != 0 { // PIDFD_THREAD
			return "a pidfd of a thread"
		}
		pid, err := strconv.Atoi(f.Info().Field("Pid"))
		if err == nil && pid != -1 && !f.Of.Of.Has(pid) { // -1: it has ended
			return "a pidfd of a process outside the tree"
		}
	case kind == "anon_inode" && slices.Contains(dumpableInodes, name):
	case namespaceLink.MatchString(f.Link):
		if of := inventory.NamespaceOfProcess(f.Of.PID, kind); of != "" && of != f.Link {
			return f.Link + ", a namespace of other processes,"
		}
	default:
		return f.Name()
	}
	return ""
}

// unsupportedNetlink does so for a netlink socket. criu restores 32 groups, and no messages.
func unsupportedNetlink(f *inventory.File) string {
	var address unix.Sockaddr
	groups, unread := make([]byte, 4096), false
	err := f.Share(func(fd int) (err error) {
		if address, err = unix.Getsockname(fd); err != nil {
			return err
		}
		size := uint32(len(groups))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_NETLINK, unix.NETLINK_LIST_MEMBERSHIPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		if errno != 0 {
			size = 0
		}
		groups = groups[:min(int(size), len(groups))]
		unread = lasts(func() bool {
			ready, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return ready > 0
		})
		return nil
	})
	own, isNetlink := address.(*unix.SockaddrNetlink)
	isSet := func(b byte) bool { return b != 0 }
	switch {
	case err != nil || !isNetlink: // closed in the meantime
	case len(groups) > 4 && slices.ContainsFunc(groups[4:], isSet):
		return "a netlink socket in a multicast group above 32"
	case own.Pid == 0 && slices.ContainsFunc(groups, isSet):
		return "a netlink socket in a multicast group, and not bound,"
	case unread:
		return "a netlink socket with unread messages"
	}
	return ""
}

// unsupportedFile does so for an open file. Devices are looked for where they usually are.
func unsupportedFile(f *inventory.File) string {
	if strings.Contains(f.Link, "/dev/") {
		switch kind := f.Kind(); {
		case kind == unix.S_IFCHR && f.HasDriverName():
			return ""
		case kind == unix.S_IFBLK || kind == unix.S_IFCHR && !isDumpable(f.Device()):
			return f.Name()
		case kind == unix.S_IFCHR && f.Device() == tunDevice && f.Of.InOurs("net"):
			return "a tun device without a network namespace of its own"
		case kind == unix.S_IFCHR && unix.Major(f.Device()) != 1:
			return "" // a terminal may be that of another mount namespace
		}
	}
	return strangeMount(f, f.Info().Field("mnt_id"))
}

// unsupportedMapping does so for a mapping.
func unsupportedMapping(f *inventory.File) string {
	switch {
	case f.Name() == "/[aio]" || f.Name() == ioURing || f.HasDriverName():
	case strings.HasPrefix(f.Link, "anon_inode:"), f.Link == "[uprobes]":
		return f.Name()
	case strings.HasPrefix(f.Link, "/SYSV") && f.Removed() && f.Of.InOurs("ipc"):
		return "SysV shared memory without an ipc namespace of its own"
	case f.Removed():
		return strangeMount(f, f.Mount())
	case strings.Contains(f.Link, "/dev/") && f.Kind() == unix.S_IFCHR && f.Device() != zeroDevice:
		return f.Name()
	}
	return ""
}

const foreignMount = "a file on a mount that its namespace does not have"

// strangeMount names a file that is used through a mount which is not in the namespace of the
// process. What is in another mount namespace than the root is refused for that. A file that has been closed since it was
// found has no mount.
func strangeMount(f *inventory.File, mount string) string {
	tree := f.Of.Of
	if f.Of.Namespace("mnt") != tree.Processes[0].Namespace("mnt") || tree.HasMount(mount) || hasHugePages(f) {
		return ""
	}
	return foreignMount + ", " + f.Name() + ","
}

// hasHugePages reports whether a file is memory in huge pages that criu will know as such: it
// maps a page of each size, and does without the sizes of which there is none.
func hasHugePages(f *inventory.File) bool {
	var fs unix.Statfs_t
	isMemory := strings.HasPrefix(f.Link, "/memfd:") || f.Name() == "/anon_hugepage"
	if !isMemory || unix.Statfs(f.Path(), &fs) != nil || fs.Type != unix.HUGETLBFS_MAGIC {
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
