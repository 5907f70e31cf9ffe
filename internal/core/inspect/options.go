package inspect

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
	"cucriu/internal/kit/inventory"
)

// Asked is what is known of a dump whose options are to be found.
type Asked struct {
	// Criu is the path of the criu that is to dump; empty if that is not known.
	Criu string
	// External is what criu is told to take for external, by its own names.
	External []string
	// NoTerminal says that the tree does not use the terminal of its session.
	NoTerminal bool
}

// Wanted is what criu must be told to dump a tree.
type Wanted struct {
	Options image.Options
	Needs   []preflight.Need // the options, with their reasons
	// Findings are what no option helps against, and what is restored otherwise than it was.
	Findings preflight.Findings
	// Removed are the removed names by which the processes use files.
	Removed []inventory.RemovedName
}

// add sets what an option needs.
func (w *Wanted) add(option, why, risk string) {
	w.Needs = append(w.Needs, preflight.Need{Option: option, Why: why, Risk: risk})
}

// OptionsOf finds the options that criu needs to dump a tree: what criu would refuse
// without. It changes nothing. A tree may change until it is dumped, and what could not be read of it is left to criu.
func OptionsOf(ctx context.Context, advice *inventory.Tree, asked Asked) (Wanted, error) {
	return (&snapshot{advice}).optionsOf(ctx, asked)
}

func (s *snapshot) optionsOf(ctx context.Context, asked Asked) (Wanted, error) {
	var w Wanted
	o := &w.Options
	var why string
	if why, o.Terminal = s.needsShellJob(asked); why != "" {
		o.ShellJob = true
		w.add("--shell-job", why, "")
	}
	if pid := s.TCPConnected(); pid != 0 {
		o.TCPEstablished = true
		w.add("--tcp-established", fmt.Sprintf("process %d has TCP connections", pid), "")
		// Somebody may hold iptables' lock. What is not known in time is left to criu, which fails without a lock.
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if missing := workingIptables(ctx); missing != "" {
			o.NetworkLock = w.networkLock(ctx, asked.Criu, missing)
		}
	}
	if pid := s.locksFiles(); pid != 0 {
		o.FileLocks = true
		w.add("--file-locks", fmt.Sprintf("process %d has a file lock", pid), "")
	}
	_, largest := s.Unlinked()
	w.Removed = s.RemovedNames()
	const ghostLimit, mib = 1 << 20, 1 << 20 // ghostLimit is criu's default for the largest unlinked file in an image, in bytes
	if largest != nil && largest.Stat().Size > ghostLimit && largest.Stat().Size <= 1<<32-mib {
		o.GhostLimit = uint32((largest.Stat().Size + mib - 1) / mib * mib)
		w.add(fmt.Sprintf("--ghost-limit %dM", o.GhostLimit/mib),
			largest.Name()+" is unlinked and in use, and goes into the image", "")
	}
	if len(w.Removed) > 0 {
		o.LinkRemap = true
		w.add("--link-remap", fmt.Sprintf("process %d uses %s, which was removed, while the file has another name", w.Removed[0].PID, w.Removed[0].Path),
			"such an image can be restored only once, and only where the file exists; cucriu dump does not need this option: it links the file to \"NAME (deleted)\"")
	}
	s.watches(&w)
	return w, s.outside(&w)
}

// Unlinkable refuses a file that could not be linked to its removed name. It finds nothing if the process does not use
// the file by that name any more, or the file has no name left.
func Unlinkable(n inventory.RemovedName) preflight.Findings {
	link, err := os.Readlink(n.Link)
	var stat unix.Stat_t
	if err != nil || link != n.Path+" (deleted)" || unix.Stat(n.Link, &stat) != nil || stat.Nlink == 0 {
		return nil
	}
	return preflight.Findings{refused(n)}
}

func refused(n inventory.RemovedName) preflight.Finding {
	return aboutProcess(n.PID, preflight.New(preflight.FindingUnsupportedFile,
		fmt.Sprintf("uses %s, which was removed, and nothing links the file to a name again, as in the lower layer of an "+
			"overlay or without its directory: criu cannot dump it, not even with --link-remap", n.Path),
		"let the job close the file, or restart what uses the removed program or library"))
}

// lowerFindings refuses removed files of an overlay's lower layer. The kernel tells of such a file that it has
// a name, so that criu does not put it into the image, and links it to none.
func (s *snapshot) lowerFindings() (findings preflight.Findings) {
	var lower []watch
	linked, _ := s.Unlinked()
	for _, f := range linked {
		same := func(w watch) bool { return w.Of == f.Of && w.Link == f.Link }
		if isInLowerLayer(f) && !slices.ContainsFunc(lower, same) {
			device := unix.Mkdev(f.Stat().Dev_major, f.Stat().Dev_minor)
			lower = append(lower, watch{File: f, target: inode{device, f.Stat().Ino}})
		}
	}
	if len(lower) == 0 {
		return nil
	}
	// The device of such a file may be another than that of the mount.
	names := namesOf(lower, s.MountRoot(), slices.DeleteFunc(slices.Clone(s.Mounts()), func(m inventory.Mount) bool {
		return m.Kind != "overlay"
	}))
	for _, f := range lower {
		if names[f.target] == "" { // else it was in the lower layer once
			findings = append(findings, refused(inventory.RemovedName{PID: f.Of.PID, Path: f.Name()}))
		}
	}
	return findings
}

// isInLowerLayer reports whether a file was in the lower layer of an overlay when it was first used. Before Linux 6.5,
// nothing tells, and the dump finds out.
func isInLowerLayer(f *inventory.File) bool {
	const handleFID = 0x200 // AT_HANDLE_FID: the handle need not be one that can be opened
	var fs unix.Statfs_t
	if unix.Statfs(f.Path(), &fs) != nil || fs.Type != unix.OVERLAYFS_SUPER_MAGIC {
		return false
	}
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, f.Path(), unix.AT_SYMLINK_FOLLOW|handleFID)
	// struct ovl_fh of the kernel's fs/overlayfs: three bytes, version, magic, length, flags.
	const magicAt, magic, flagsAt, upper = 4, 0xfb, 6, 1 << 2
	return err == nil && handle.Size() > flagsAt && handle.Bytes()[magicAt] == magic && handle.Bytes()[flagsAt]&upper == 0
}

// terminal is a terminal, other than the master of a pseudo terminal.
var terminal = regexp.MustCompile(`^/dev/(pts/\d+|tty[^/]*|console)$`)

// needsShellJob says why a tree belongs to a session or terminal that is not its own;
// empty if it does not. It also tells whether it has a terminal, beside external ones.
func (s *snapshot) needsShellJob(asked Asked) (why string, onTerminal bool) {
	user, hasMaster := 0, false
	for _, pid := range s.PIDs {
		process, err := procfs.NewProc(pid)
		if err != nil {
			continue
		}
		stat, err := process.Stat()
		if err != nil || stat.State == "Z" {
			continue
		}
		if why == "" && !slices.Contains(s.PIDs, stat.Session) {
			why = fmt.Sprintf("process %d belongs to the session of process %d, which is not in the tree", pid, stat.Session)
		}
		if stat.TTY != 0 && !asked.NoTerminal && !asked.isExternal(uint64(uint32(stat.TTY))) {
			user = pid
		}
	}
	for f := range s.Open {
		hasMaster = hasMaster || f.Link == "/dev/ptmx" || f.Link == "/dev/pts/ptmx"
		if !terminal.MatchString(f.Link) {
			continue
		}
		// /dev/tty is that of the session.
		external := len(asked.External) > 0 && f.Kind() != 0 && (asked.isExternal(f.Device()) || f.Link == "/dev/tty")
		if !external {
			user = f.Of.PID
		}
	}
	onTerminal = user != 0 && !hasMaster
	if onTerminal && why == "" {
		why = fmt.Sprintf("process %d has a terminal", user)
	}
	return why, onTerminal
}

// isExternal reports whether a terminal is among what criu takes for external.
func (a Asked) isExternal(device uint64) bool {
	return slices.ContainsFunc(a.External, func(name string) bool { return strings.HasPrefix(name, fmt.Sprintf("tty[%x:", device)) })
}

// locksFiles finds a process that holds a file lock, 0 if there is none. The kernel names the
// process that took a lock. It leaves out a lock whose process has ended since (flock(1) locks a
// descriptor of a shell), and names none for a lock of the open file (F_OFD_SETLK).
func (s *snapshot) locksFiles() int {
	for line := range strings.Lines(readText("/proc/locks")) {
		fields := strings.Fields(line) // 1: POSIX ADVISORY WRITE 708 08:01:123 0 EOF
		if len(fields) < 5 || fields[1] == "->" {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil && slices.Contains(s.PIDs, pid) {
			return pid
		}
	}
	for f := range s.Open {
		if strings.HasPrefix(f.Link, "/") && f.Info().Field("lock") != "" {
			return f.Of.PID
		}
	}
	return 0
}

// optionsFindings show the options that a tree needs as the line to type for plain criu.
func (s *snapshot) optionsFindings(ctx context.Context, asked Asked) (preflight.Findings, error) {
	w, err := s.optionsOf(ctx, asked)
	if err != nil {
		return nil, err
	}
	f := preflight.Fine(preflight.FindingOptions, "criu needs no option for this tree")
	if len(w.Needs) > 0 {
		var whys, risks []string
		for _, need := range w.Needs {
			whys = append(whys, need.Why)
			if need.Risk != "" {
				risks = append(risks, need.Risk)
			}
		}
		f.Message = fmt.Sprintf("cucriu dump sets %s (%s)", strings.Join(w.Options.Arguments(), " "), strings.Join(whys, "; "))
		if len(risks) > 0 {
			f.Severity, f.Remedy = preflight.SeverityWarning, strings.Join(risks, "; ")
		}
	}
	return append(preflight.Findings{f}, w.Findings...), nil
}

const riskOfSkip = "a packet that arrives during the dump may break its connection: install iptables, or a criu built with nftables, to block such packets"

// networkLock finds a way to hold back the packets of TCP connections where criu's default, iptables,
// does not work: nftables, which is in criu if it was built with it; else none.
func (w *Wanted) networkLock(ctx context.Context, criu, missing string) (method string) {
	if criuutil.HasFeature(ctx, criu, "network_lock_nftables") {
		w.add("--network-lock nftables", missing, "")
		return "nftables"
	}
	if ctx.Err() != nil {
		return ""
	}
	w.add("--network-lock skip", missing+", and criu has no nftables", riskOfSkip)
	return "skip"
}

// workingIptables says what is wrong with iptables here; empty if nothing.
func workingIptables(ctx context.Context) string {
	for _, name := range []string{"iptables", "iptables-restore"} { // the second for a network namespace of the tree's own
		if _, err := exec.LookPath(name); err != nil {
			return name + " is not installed here"
		}
	}
	if out, err := exec.CommandContext(ctx, "iptables", "-w", "-t", "filter", "-S", "INPUT").CombinedOutput(); err != nil {
		text, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return fmt.Sprintf("iptables does not work here (%s)", strings.TrimSpace(text+" "+err.Error()))
	}
	return ""
}
