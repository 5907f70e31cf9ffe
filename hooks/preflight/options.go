package preflight

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
	"cucriu/hooks/image"
)

// Need is an option of criu that a tree needs, and why.
type Need struct {
	Option string // as on criu's command line, such as "--shell-job"
	Why    string
	Risk   string // what may go wrong with it; empty if nothing
}

// OptionsOf finds the options that criu needs to dump a tree: what criu would refuse
// without. It changes nothing. A tree may change until it is dumped.
func OptionsOf(root int) (image.Options, []Need, error) {
	pids, err := proc.Tree(root)
	if err != nil {
		return image.Options{}, nil, err
	}
	var o image.Options
	var needs []Need
	if why := needsShellJob(pids); why != "" {
		o.ShellJob = true
		needs = append(needs, Need{Option: "--shell-job", Why: why})
	}
	if pid := connected(pids); pid != 0 {
		o.TCPEstablished = true
		needs = append(needs, Need{Option: "--tcp-established", Why: fmt.Sprintf("process %d has TCP connections", pid)})
		if _, err := exec.LookPath("iptables-restore"); err != nil {
			o.NetworkLock = "skip"
			needs = append(needs, Need{
				Option: "--network-lock skip", Why: "iptables is not installed here",
				Risk: "a packet that comes in while the job is dumped may end its connection: install iptables to hold such packets back",
			})
		}
	}
	if pid := locksFiles(pids); pid != 0 {
		o.FileLocks = true
		needs = append(needs, Need{Option: "--file-locks", Why: fmt.Sprintf("process %d has a file lock", pid)})
	}
	size, path, removed := unlinked(pids)
	if len(removed) > 0 {
		o.LinkRemap = true
		needs = append(needs, Need{
			Option: "--link-remap", Why: removed[0].Path + " is in use by this name, which was removed, and the file has another one",
			Risk: "the image can be restored on this host only, as long as the file is there; cucriu dump does without this option, and links the file to \"NAME (deleted)\"",
		})
	}
	if size > ghostLimit {
		const mib = 1 << 20
		if limit := (size + mib - 1) / mib * mib; limit < 1<<32 {
			o.GhostLimit = uint32(limit)
			needs = append(needs, Need{
				Option: fmt.Sprintf("--ghost-limit %dM", limit/mib),
				Why:    fmt.Sprintf("%s is unlinked and in use, and goes into the image", path),
			})
		}
	}
	return o, needs, nil
}

// needsShellJob says why a tree belongs to a session or terminal that is not its own;
// empty if it does not.
func needsShellJob(pids []int) string {
	hasMaster, onTerminal := false, 0
	for _, pid := range pids {
		process, err := procfs.NewProc(pid)
		if err != nil {
			continue
		}
		stat, err := process.Stat()
		if err != nil || stat.State == "Z" {
			continue
		}
		if !slices.Contains(pids, stat.Session) {
			return fmt.Sprintf("process %d belongs to the session of process %d, which is not in the tree", pid, stat.Session)
		}
		if stat.TTY != 0 {
			onTerminal = pid
		}
		open, err := process.FileDescriptorTargets()
		hasMaster = hasMaster || err == nil && slices.Contains(open, "/dev/ptmx")
	}
	if onTerminal != 0 && !hasMaster {
		return fmt.Sprintf("process %d has a terminal", onTerminal)
	}
	return ""
}

// connectedStates are the states of a TCP socket in which criu needs --tcp-established, as
// /proc/PID/net/tcp has them: established, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK,
// CLOSING.
var connectedStates = []string{"01", "04", "05", "08", "09", "0B"}

var socketLink = regexp.MustCompile(`^socket:\[(\d+)\]$`)

// connected finds a process with a TCP connection, 0 if there is none.
func connected(pids []int) int {
	byNamespace := make(map[string]map[uint64]bool) // inodes of connected sockets
	for _, pid := range pids {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		namespace, err := os.Readlink(filepath.Join(dir, "ns", "net"))
		if err != nil {
			continue
		}
		if byNamespace[namespace] == nil {
			byNamespace[namespace] = connectedSockets(dir)
		}
		if len(byNamespace[namespace]) == 0 {
			continue
		}
		for _, link := range linksOf(filepath.Join(dir, "fd")) {
			if match := socketLink.FindStringSubmatch(link); match != nil {
				if inode, err := strconv.ParseUint(match[1], 10, 64); err == nil && byNamespace[namespace][inode] {
					return pid
				}
			}
		}
	}
	return 0
}

// connectedSockets returns the inodes of the TCP connections in the network namespace of a
// process, whose folder in /proc is dir.
func connectedSockets(dir string) map[uint64]bool {
	inodes := make(map[uint64]bool)
	for _, name := range []string{"tcp", "tcp6"} {
		data, err := os.ReadFile(filepath.Join(dir, "net", name))
		if err != nil {
			continue // without IPv6 there is no tcp6
		}
		for line := range strings.Lines(string(data)) {
			// sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
			fields := strings.Fields(line)
			if len(fields) < 10 || !slices.Contains(connectedStates, fields[3]) {
				continue
			}
			if inode, err := strconv.ParseUint(fields[9], 10, 64); err == nil && inode > 0 {
				inodes[inode] = true
			}
		}
	}
	return inodes
}

// linksOf returns the links in a folder by their paths.
func linksOf(dir string) map[string]string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	links := make(map[string]string)
	for _, entry := range entries {
		name := filepath.Join(dir, entry.Name())
		if link, err := os.Readlink(name); err == nil {
			links[name] = link
		}
	}
	return links
}

// locksFiles finds a process that holds a file lock, 0 if there is none.
func locksFiles(pids []int) int {
	data, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line) // 1: POSIX ADVISORY WRITE 708 08:01:123 0 EOF
		if len(fields) < 5 || fields[1] == "->" {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil && slices.Contains(pids, pid) {
			return pid
		}
	}
	return 0
}

// ghostLimit is criu's default for the largest unlinked file that it puts into an image,
// in bytes.
const ghostLimit = 1 << 20

// RemovedName is the name by which a process uses a file, and which was removed although the
// file has another one. A named semaphore is made like this, such as those of Python's
// multiprocessing with spawned processes.
type RemovedName struct {
	PID  int
	Path string // as the process sees it
	Link string // the file itself, below /proc/PID
}

// RemovedNames lists the removed names by which the processes of a tree use files.
func RemovedNames(root int) ([]RemovedName, error) {
	pids, err := proc.Tree(root)
	if err != nil {
		return nil, err
	}
	_, _, removed := unlinked(pids)
	return removed, nil
}

// unlinked finds the largest regular file that a process has open or mapped and that has no
// name any more, and the files of which a name was removed.
func unlinked(pids []int) (size uint64, path string, removed []RemovedName) {
	pid := 0
	look := func(name, link string) {
		var stat unix.Stat_t
		if !isGhost(link) || unix.Stat(name, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFREG {
			return
		}
		link = strings.TrimSuffix(link, " (deleted)")
		switch {
		case stat.Nlink > 0:
			removed = append(removed, RemovedName{PID: pid, Path: link, Link: name})
		case uint64(stat.Size) > size:
			size, path = uint64(stat.Size), link
		}
	}
	for _, pid = range pids {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		for name, link := range linksOf(filepath.Join(dir, "fd")) {
			look(name, link)
		}
		mappings, err := proc.Mappings(pid)
		if err != nil {
			continue // it has ended
		}
		for _, m := range mappings {
			look(filepath.Join(dir, "map_files", fmt.Sprintf("%x-%x", m.StartAddr, m.EndAddr)), m.Pathname)
		}
	}
	return size, path, removed
}

// isGhost reports whether a link in /proc is that of an unlinked file of a file system.
// criu has other ways for memory that only looks like one.
func isGhost(link string) bool {
	if !strings.HasSuffix(link, " (deleted)") {
		return false
	}
	for _, prefix := range []string{"/memfd:", "/dev/zero", "/SYSV", "/anon_hugepage", "/dev/nvidia"} {
		if strings.HasPrefix(link, prefix) {
			return false
		}
	}
	return true
}

// optionsFinding shows the options that a tree needs as the line to type for plain criu.
func optionsFinding(root int) (Finding, error) {
	o, needs, err := OptionsOf(root)
	if errors.Is(err, proc.ErrGone) {
		return Finding{}, AsRefusal(err)
	}
	if err != nil {
		return Finding{}, err
	}
	f := Finding{Name: FindingOptions, Severity: SeverityOK, Message: "criu needs no option for this tree"}
	if len(needs) > 0 {
		whys := make([]string, len(needs))
		for i, need := range needs {
			whys[i] = need.Why
			if need.Risk != "" {
				f.Severity, f.Remedy = SeverityWarning, strings.TrimPrefix(f.Remedy+"; "+need.Risk, "; ")
			}
		}
		f.Message = fmt.Sprintf("cucriu dump sets %s (%s)", strings.Join(o.Arguments(), " "), strings.Join(whys, "; "))
	}
	return f, nil
}
