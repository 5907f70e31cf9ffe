package preflight

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"cucriu/internal/proc"
)

// tree is a tree of processes with what they have open and mapped. All that judge the tree share
// it, so nothing is read twice.
type tree struct {
	pids  []int // all of the tree's, also of those that have ended
	looks []*look
	tcp   map[string][]proc.TCPSocket // by network namespace
}

func treeOf(pids []int) *tree { return &tree{pids: pids, tcp: make(map[string][]proc.TCPSocket)} }

// readTree reads the tree below root. A process that has ended, or ends meanwhile, is left out.
func readTree(root int) (*tree, error) {
	pids, err := proc.Tree(root)
	if err != nil {
		return nil, err
	}
	t := treeOf(pids)
	for _, pid := range pids {
		_, _ = t.look(pid)
	}
	return t, nil
}

// look returns a process of the tree, and reads it if it was not read before.
func (t *tree) look(pid int) (*look, error) {
	if i := slices.IndexFunc(t.looks, func(l *look) bool { return l.pid == pid }); i >= 0 {
		return t.looks[i], nil
	}
	l, err := lookAt(pid)
	if err == nil {
		t.looks = append(t.looks, l)
	}
	return l, err
}

// open yields the descriptors of all processes.
func (t *tree) open(yield func(*file) bool) {
	for _, l := range t.looks {
		for _, f := range l.open {
			if !yield(f) {
				return
			}
		}
	}
}

// inodes returns a descriptor for each inode of a kind.
func (t *tree) inodes(kind string) map[uint64]*file {
	found := make(map[uint64]*file)
	for f := range t.open {
		if inode, is := f.inode(kind); is && found[inode] == nil {
			found[inode] = f
		}
	}
	return found
}

// look is what /proc shows of a process. What is closed or unmapped while it is read is left out.
type look struct {
	pid    int
	status proc.Status
	mapped []mapping // the mappings that have a name, by address
	names  []string  // of these, each once
	open   []*file
	own    []*file // its program, working directory and root

	environment func() ([]string, error) // as it was started
	threads     func() []int             // none if it has ended
	namespaces  map[string]string
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

// lookAt reads a process's mappings and descriptors. The process need not run.
func lookAt(pid int) (*look, error) {
	l := &look{pid: pid, namespaces: make(map[string]string)}
	if err := l.readMappings(); err != nil {
		return nil, proc.GoneOr(pid, err)
	}
	if err := l.readDescriptors(nil); err != nil {
		return nil, proc.GoneOr(pid, err)
	}
	for _, own := range []struct{ name, how string }{{"exe", "as its program"}, {"cwd", "as its working directory"}, {"root", "as its root directory"}} {
		if f := l.follow(own.name, own.how); f != nil {
			l.own = append(l.own, f)
		}
	}
	var err error
	if l.status, err = proc.ReadStatus(pid); err != nil {
		return nil, err
	}
	l.environment = sync.OnceValues(func() ([]string, error) {
		process, err := procfs.NewProc(pid)
		var environment []string
		if err == nil {
			environment, err = process.Environ()
		}
		if err != nil {
			err = proc.GoneOr(pid, err)
		}
		return environment, err
	})
	l.threads = sync.OnceValue(func() []int {
		tids, _ := proc.Threads(pid)
		return tids
	})
	return l, nil
}

// readMappings reads the mappings that have a name.
func (l *look) readMappings() error {
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", l.pid))
	if err != nil {
		return err
	}
	defer maps.Close()
	names := make(map[string]bool)
	for lines := bufio.NewScanner(maps); ; {
		if !lines.Scan() {
			return lines.Err()
		}
		addresses, rest, _ := strings.Cut(lines.Text(), " ") // START-END PERMISSIONS OFFSET DEVICE INODE NAME
		permissions, rest, _ := strings.Cut(rest, " ")
		for range 3 {
			_, rest, _ = strings.Cut(rest, " ")
		}
		link := strings.TrimLeft(rest, " ")
		if link == "" {
			continue
		}
		start, end, _ := strings.Cut(addresses, "-")
		var r proc.Range
		var startErr, endErr error
		r.Start, startErr = strconv.ParseUint(start, 16, 64)
		r.End, endErr = strconv.ParseUint(end, 16, 64)
		if err := errors.Join(startErr, endErr); err != nil {
			return fmt.Errorf("maps: %q: %w", lines.Text(), err)
		}
		f := &file{of: l, at: "map_files/" + strings.TrimLeft(start, "0") + "-" + strings.TrimLeft(end, "0"), how: "mapped", link: link}
		l.mapped = append(l.mapped, mapping{f, r, strings.HasSuffix(permissions, "s")})
		if name := f.name(); !names[name] {
			names[name] = true
			l.names = append(l.names, name)
		}
	}
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

// about returns the finding, marked as one about this process.
func (l *look) about(f Finding) Finding {
	f.PID, f.Process = l.pid, l.status.Name
	return f
}

// matching returns the names of the mapped files that match a pattern.
func (l *look) matching(pattern *regexp.Regexp) []string {
	var found []string
	for _, name := range l.names {
		if pattern.MatchString(name) {
			found = append(found, name)
		}
	}
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

// namespace is the process's namespace of a kind: see namespaceOf.
func (l *look) namespace(kind string) string {
	if _, known := l.namespaces[kind]; !known {
		l.namespaces[kind] = namespaceOf(strconv.Itoa(l.pid), kind)
	}
	return l.namespaces[kind]
}

// inOurs reports whether a process is in our namespace of a kind, which is criu's, too.
func (l *look) inOurs(kind string) bool {
	return l.namespace(kind) != "" && l.namespace(kind) == namespaceOf("self", kind)
}

// namespaceOf returns the namespace of a process or thread; "" if it has ended, or if the kernel
// does not have the kind.
func namespaceOf(pid, kind string) string {
	link, _ := os.Readlink(filepath.Join("/proc", pid, "ns", kind))
	return link
}

// path is the link in /proc, by which the file itself can be reached.
func (f *file) path() string { return "/proc/" + strconv.Itoa(f.of.pid) + "/" + f.at }

// name is the name of the file, which it may have no more.
func (f *file) name() string { return strings.TrimSuffix(f.link, " (deleted)") }

// removed reports whether the file does not have its name any more.
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
