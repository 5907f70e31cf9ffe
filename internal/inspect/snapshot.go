package inspect

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/proc"
)

// snapshot is a tree of processes with what they have open and mapped. It is read once, and all that
// judge the tree share it.
type snapshot struct {
	pids  []int // all of the tree's, also of those that have ended
	looks []*look
	tcp   map[string][]proc.TCPSocket // by network namespace

	programs   map[string]bool // that its processes execute
	rootMounts map[string]bool // see look.mounts
}

func snapshotBelow(root int) (*snapshot, error) {
	pids, err := proc.Tree(root)
	if err != nil {
		return nil, err
	}
	return snapshotOf(pids)
}

// snapshotOf reads processes, all at once. Those that have ended are left out. If the first, or one
// that has not ended, cannot be read, the error says why.
func snapshotOf(pids []int) (*snapshot, error) {
	s := &snapshot{pids: pids, tcp: make(map[string][]proc.TCPSocket), programs: make(map[string]bool)}
	looks, errs := make([]*look, len(pids)), make([]error, len(pids))
	proc.AtOnce(runtime.NumCPU(), len(pids), func(i int) { looks[i], errs[i] = lookAt(pids[i]) })
	var failed error
	for i, l := range looks {
		switch {
		case errs[i] == nil:
			l.of = s
			s.looks = append(s.looks, l)
			s.programs[l.program()] = true
		case i == 0 || !errors.Is(errs[i], proc.ErrGone):
			failed = errors.Join(failed, errs[i])
		}
	}
	if len(s.looks) > 0 {
		s.rootMounts = s.looks[0].mounts()
	}
	return s, failed
}

// look returns a process of the tree, and reads it if it was not read before.
func (s *snapshot) look(pid int) (*look, error) {
	if i := slices.IndexFunc(s.looks, func(l *look) bool { return l.pid == pid }); i >= 0 {
		return s.looks[i], nil
	}
	return lookAt(pid)
}

// open yields the descriptors of all processes.
func (s *snapshot) open(yield func(*file) bool) {
	for _, l := range s.looks {
		for _, f := range l.open {
			if !yield(f) {
				return
			}
		}
	}
}

// inodes returns a descriptor for each inode of a kind.
func (s *snapshot) inodes(kind string) map[uint64]*file {
	found := make(map[uint64]*file)
	for f := range s.open {
		if inode, is := f.inode(kind); is && found[inode] == nil {
			found[inode] = f
		}
	}
	return found
}

// look is what /proc shows of a process. What is closed or unmapped while it is read is left out.
type look struct {
	of     *snapshot // nil if the process was looked at alone
	pid    int
	status proc.Status
	mapped []mapping // the mappings that have a name, by address
	names  []string  // of these, each once
	open   []*file
	own    []*file // its program, working directory and root
	uses   driverUse
	// spaces are its namespaces by kind: see namespaceOf.
	spaces map[string]string

	threads []int
}

// mapping is a mapped file, or what the kernel shows as one.
type mapping struct {
	*file
	proc.Range
	shared bool
}

// file is what a process has open or mapped, or uses as its program or directory.
type file struct {
	of     *look
	number string // of the descriptor; empty if it is not open
	at     string // the link below /proc/PID, such as fd/5
	how    string // for people
	link   string // where the link leads

	read    *proc.DescriptorInfo // nil if not read yet
	statted *unix.Statx_t
}

// tooLong takes the place of a link that cannot be read.
const tooLong = "a file whose path is longer than 4 KiB"

var namespaceKinds = []string{"mnt", "net", "user", "pid", "pid_for_children", "ipc", "uts", "cgroup", "time", "time_for_children"}

// lookAt reads a process. The process need not run.
func lookAt(pid int) (*look, error) {
	l := &look{pid: pid, spaces: make(map[string]string)}
	if err := l.readMappings(); err != nil {
		return nil, err
	}
	if err := l.readDescriptors(nil); err != nil {
		return nil, proc.GoneOr(pid, err)
	}
	for _, own := range []struct{ name, how string }{{"exe", "as its program"}, {"cwd", "as its working directory"}, {"root", "as its root directory"}} {
		if f := l.follow(own.name, own.how); f != nil {
			l.own = append(l.own, f)
		}
	}
	for _, kind := range namespaceKinds {
		l.spaces[kind] = namespaceOf(strconv.Itoa(pid), kind)
	}
	l.uses = l.driverUse()
	l.threads, _ = proc.Threads(pid)
	var err error
	l.status, err = proc.ReadStatus(pid)
	return l, err
}

// readMappings reads the mappings that have a name. A program of PyTorch has thousands, and its workers
// are looked at while the job is paused, so they are not parsed any further.
func (l *look) readMappings() error {
	names := make(map[string]bool)
	return proc.EachMapping(l.pid, func(line string) error {
		r, fields, link, err := proc.SplitMapping(line)
		if err != nil || link == "" {
			return err
		}
		f := &file{of: l, at: fmt.Sprintf("map_files/%x-%x", r.Start, r.End), how: "mapped", link: link}
		l.mapped = append(l.mapped, mapping{f, r, strings.HasSuffix(fields[1], "s")})
		if name := f.name(); !names[name] {
			names[name] = true
			l.names = append(l.names, name)
		}
		return nil
	})
}

// readDescriptors reads the descriptors, or only those whose links are wanted.
func (l *look) readDescriptors(wanted map[string]bool) error {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", l.pid))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		f := l.follow("fd/"+entry.Name(), "open (descriptor "+entry.Name()+")")
		if f != nil && (wanted == nil || wanted[f.link]) {
			f.number = entry.Name()
			l.open = append(l.open, f)
		}
	}
	return nil
}

// follow reads a link below /proc/PID; nil if it is gone.
func (l *look) follow(at, how string) *file {
	f := &file{of: l, at: at, how: how}
	link, err := os.Readlink(f.path())
	switch {
	case errors.Is(err, unix.ENAMETOOLONG):
		link = tooLong
	case err != nil:
		return nil
	}
	f.link = link
	return f
}

// environment is that with which the process was started, unless it has put something else there.
func (l *look) environment() []string {
	return strings.Split(readText("/proc/%d/environ", l.pid), "\x00")
}

// about returns the finding, marked as one about this process.
func (l *look) about(f preflight.Finding) preflight.Finding {
	f.PID, f.Process = l.pid, l.status.Name
	return f
}

// maps reports whether a mapped file matches a pattern.
func (l *look) maps(pattern *regexp.Regexp) bool {
	return slices.ContainsFunc(l.names, pattern.MatchString)
}

// matching returns the names of the mapped files that match a pattern.
func (l *look) matching(pattern *regexp.Regexp) []string {
	found := slices.DeleteFunc(slices.Clone(l.names), func(name string) bool { return !pattern.MatchString(name) })
	slices.Sort(found)
	return found
}

// program is what the process executes; empty if that is not known.
func (l *look) program() string {
	if len(l.own) > 0 && l.own[0].at == "exe" {
		return l.own[0].name()
	}
	return ""
}

// inOurs reports whether a process is in our namespace of a kind, which is criu's, too.
func (l *look) inOurs(kind string) bool {
	return l.spaces[kind] != "" && l.spaces[kind] == namespaceOf("self", kind)
}

// namespaceOf returns the namespace of a process or thread; "" if it has ended, or if the kernel
// does not have the kind.
func namespaceOf(pid, kind string) string {
	link, _ := os.Readlink("/proc/" + pid + "/ns/" + kind)
	return link
}

// path is the link in /proc, by which the file itself can be reached.
func (f *file) path() string { return "/proc/" + strconv.Itoa(f.of.pid) + "/" + f.at }

// name is the name of the file, which may have been removed.
func (f *file) name() string { return strings.TrimSuffix(f.link, " (deleted)") }

// removed reports whether the name was removed.
func (f *file) removed() bool { return strings.HasSuffix(f.link, " (deleted)") }

// info is what /proc tells of the descriptor; it is empty if the descriptor has been closed.
func (f *file) info() proc.DescriptorInfo {
	if f.read == nil {
		info, _ := proc.ReadDescriptor(f.of.pid, f.number)
		f.read = &info
	}
	return *f.read
}

// stat looks at the file, and does not wait for the server of its file system. The result is empty
// if the file is used no longer.
func (f *file) stat() *unix.Statx_t {
	if f.statted == nil {
		f.statted = new(unix.Statx_t)
		_ = unix.Statx(unix.AT_FDCWD, f.path(), unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, f.statted)
	}
	return f.statted
}

func (f *file) kind() uint16 { return f.stat().Mode & unix.S_IFMT }

// device is what a device file stands for.
func (f *file) device() uint64 { return unix.Mkdev(f.stat().Rdev_major, f.stat().Rdev_minor) }

// mount is the id of the mount through which the file is used; empty if that is not known. Linux
// has it from 5.8 on.
func (f *file) mount() string {
	if f.stat().Mask&unix.STATX_MNT_ID == 0 {
		return ""
	}
	return strconv.FormatUint(f.stat().Mnt_id, 10)
}

// inode returns the inode of a socket or a pipe, which the kind names.
func (f *file) inode(kind string) (uint64, bool) {
	number, isKind := strings.CutPrefix(f.link, kind+":[")
	if !isKind {
		return 0, false
	}
	inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
	return inode, err == nil
}
