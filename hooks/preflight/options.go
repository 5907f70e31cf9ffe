package preflight

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

	"cucriu/criuutil"
	"cucriu/internal/image"
)

// Need is an option of criu that a tree needs, and why.
type Need struct {
	Option string // as on criu's command line, such as "--shell-job"
	Why    string
	Risk   string // what may go wrong with it; empty if nothing
}

// Asked is what is known of a dump whose options are to be found.
type Asked struct {
	Root int
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
	Needs   []Need // the options, with their reasons
	// Findings are what no option helps against, and what comes back otherwise than it was.
	Findings Findings
	// Removed are the removed names by which the processes use files.
	Removed []RemovedName
}

// add sets what an option needs.
func (w *Wanted) add(option, why, risk string) {
	w.Needs = append(w.Needs, Need{option, why, risk})
}

// OptionsOf finds the options that criu needs to dump a tree: what criu would refuse
// without. It changes nothing. A tree may change until it is dumped.
func OptionsOf(ctx context.Context, asked Asked) (Wanted, error) {
	t, err := readTree(asked.Root)
	if err != nil {
		return Wanted{}, err
	}
	return t.optionsOf(ctx, asked)
}

func (t *tree) optionsOf(ctx context.Context, asked Asked) (Wanted, error) {
	var w Wanted
	o := &w.Options
	var why string
	if why, o.Terminal = t.needsShellJob(asked); why != "" {
		o.ShellJob = true
		w.add("--shell-job", why, "")
	}
	if pid := t.connected(); pid != 0 {
		o.TCPEstablished = true
		w.add("--tcp-established", fmt.Sprintf("process %d has TCP connections", pid), "")
		var need Need
		if o.NetworkLock, need = networkLock(ctx, asked.Criu); o.NetworkLock != "" {
			w.Needs = append(w.Needs, need)
		}
	}
	if pid := t.locksFiles(); pid != 0 {
		o.FileLocks = true
		w.add("--file-locks", fmt.Sprintf("process %d has a file lock", pid), "")
	}
	gone := t.unlinked()
	w.Removed = gone.removed
	if limit, need := gone.ghostNeed(); limit > 0 {
		o.GhostLimit = limit
		w.Needs = append(w.Needs, need)
	}
	if len(gone.removed) > 0 {
		o.LinkRemap = true
		w.add("--link-remap", fmt.Sprintf("process %d uses %s, which was removed, while the file has another name", gone.removed[0].PID, gone.removed[0].Path),
			"an image made so restores once, and only where the file is; cucriu dump does without this option, and links the file to \"NAME (deleted)\"")
	}
	return w, w.outside(t)
}

// terminal is a terminal, other than the master of a pseudo terminal.
var terminal = regexp.MustCompile(`^/dev/(pts/\d+|tty[^/]*|console)$`)

// needsShellJob says why a tree belongs to a session or terminal that is not its own;
// empty if it does not. It also tells whether it has a terminal, beside external ones.
func (t *tree) needsShellJob(asked Asked) (why string, onTerminal bool) {
	user, hasMaster := 0, false
	for _, pid := range t.pids {
		process, err := procfs.NewProc(pid)
		if err != nil {
			continue
		}
		stat, err := process.Stat()
		if err != nil || stat.State == "Z" {
			continue
		}
		if why == "" && !slices.Contains(t.pids, stat.Session) {
			why = fmt.Sprintf("process %d belongs to the session of process %d, which is not in the tree", pid, stat.Session)
		}
		if stat.TTY != 0 && !asked.NoTerminal && !isExternal(asked.External, uint64(uint32(stat.TTY))) {
			user = pid
		}
	}
	for f := range t.open {
		hasMaster = hasMaster || f.link == "/dev/ptmx" || f.link == "/dev/pts/ptmx"
		if terminal.MatchString(f.link) && !f.isExternalTerminal(asked.External) {
			user = f.of.pid
		}
	}
	onTerminal = user != 0 && !hasMaster
	if onTerminal && why == "" {
		why = fmt.Sprintf("process %d has a terminal", user)
	}
	return why, onTerminal
}

// isExternal reports whether a terminal is among what criu takes for external.
func isExternal(external []string, device uint64) bool {
	return slices.ContainsFunc(external, func(name string) bool { return strings.HasPrefix(name, fmt.Sprintf("tty[%x:", device)) })
}

// isExternalTerminal does the same for an open terminal. /dev/tty is that of the session.
func (f *file) isExternalTerminal(external []string) bool {
	return len(external) > 0 && f.kind() != 0 && (isExternal(external, f.device()) || f.link == "/dev/tty")
}

// locksFiles finds a process that holds a file lock, 0 if there is none. The kernel names the
// process that took a lock. It leaves out a lock whose process has ended since (flock(1) locks a
// descriptor of a shell), and names none for a lock of the open file (F_OFD_SETLK).
func (t *tree) locksFiles() int {
	data, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line) // 1: POSIX ADVISORY WRITE 708 08:01:123 0 EOF
		if len(fields) < 5 || fields[1] == "->" {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil && slices.Contains(t.pids, pid) {
			return pid
		}
	}
	for f := range t.open {
		if strings.HasPrefix(f.link, "/") && f.info().Field("lock") != "" {
			return f.of.pid
		}
	}
	return 0
}

// optionsFindings show the options that a tree needs as the line to type for plain criu.
func (t *tree) optionsFindings(ctx context.Context, asked Asked) (Findings, error) {
	w, err := t.optionsOf(ctx, asked)
	if err != nil {
		return nil, err
	}
	f := fine(FindingOptions, "criu needs no option for this tree")
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
			f.Severity, f.Remedy = SeverityWarning, strings.Join(risks, "; ")
		}
	}
	return append(Findings{f}, w.Findings...), nil
}

const riskOfSkip = "a packet that comes in while the job is dumped may end its connection: install iptables, or a criu that was built with nftables, to hold such packets back"

// networkLock finds a way to hold back the packets of TCP connections that works here: criu's
// default, iptables; else nftables, which is in criu if it was built with it; else none.
func networkLock(ctx context.Context, criu string) (method string, need Need) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	missing := workingIptables(ctx)
	if missing == "" {
		return "", Need{}
	}
	if criuutil.HasFeature(ctx, criu, "network_lock_nftables") {
		return "nftables", Need{Option: "--network-lock nftables", Why: missing}
	}
	return "skip", Need{Option: "--network-lock skip", Why: missing + ", and criu has no nftables", Risk: riskOfSkip}
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
