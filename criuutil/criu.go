package criuutil

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// Criu is a running criu, as an action script can see it.
type Criu struct {
	*Process
	// What its command line and its configuration files say. Under RPC (criu
	// swrk, criu service) the options come over a socket and are not to be seen.
	LeaveStopped  bool // -s
	LeaveRunning  bool // -R
	FreezeCgroup  bool // --freeze-cgroup
	RPC           bool // driven over RPC
	WorkDirectory string
}

// imageDir is the form of CRTOOLS_IMAGE_DIR: a descriptor of criu itself.
var imageDir = regexp.MustCompile(`^/proc/([1-9][0-9]*)/fd/([0-9]+)$`)

// CriuOf takes hold of the criu that runs an action script with this
// CRTOOLS_IMAGE_DIR. The script itself must be a descendant of it, so that a
// made-up environment cannot name another process.
func CriuOf(imageDirVariable string) (*Criu, error) {
	match := imageDir.FindStringSubmatch(imageDirVariable)
	if match == nil {
		return nil, fmt.Errorf("CRTOOLS_IMAGE_DIR is %q, and criu sets it to /proc/PID/fd/N: was this started by criu?", imageDirVariable)
	}
	pid, err := strconv.Atoi(match[1])
	if err != nil {
		return nil, fmt.Errorf("CRTOOLS_IMAGE_DIR: %w", err)
	}
	ancestor, err := IsAncestor(pid, os.Getpid())
	if err != nil {
		return nil, err
	}
	if !ancestor {
		return nil, fmt.Errorf("CRTOOLS_IMAGE_DIR names process %d, which is not an ancestor of this action script: was this started by criu?", pid)
	}
	process, err := OpenProcess(pid)
	if err != nil {
		return nil, fmt.Errorf("criu: %w", err)
	}
	proc, err := procfs.NewProc(pid)
	if err != nil {
		return nil, errors.Join(goneOr(pid, err), process.Close())
	}
	args, err := proc.CmdLine()
	if err != nil {
		return nil, errors.Join(goneOr(pid, err), process.Close())
	}
	criu := &Criu{Process: process}
	criu.readArguments(args)
	for _, file := range configurationFiles(args, os.Getenv("HOME")) {
		data, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, errors.Join(fmt.Errorf("criu's configuration: %w", err), process.Close())
		}
		criu.readConfiguration(string(data))
	}
	criu.WorkDirectory, _ = os.Readlink(filepath.Join("/proc", match[1], "cwd"))
	return criu, nil
}

// shortOptions are criu's, in getopt's notation (crtools.c of criu 4.2).
const shortOptions = "dSsRt:hD:o:v::x::Vr:jJ:lW:L:M:"

// readArguments finds the options in criu's command line as getopt_long does:
// clusters of short options, unambiguous abbreviations of long ones.
func (c *Criu) readArguments(args []string) {
	// Once it has read a request, criu shows "criu: dump --rpc -t PID" in the
	// place of its command line, as one word.
	c.RPC = strings.Contains(strings.Join(args, " ")+" ", " --rpc ")
	for i := 1; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "--":
			return
		case strings.HasPrefix(arg, "--"):
			name, _, _ := strings.Cut(arg[2:], "=")
			c.LeaveStopped = c.LeaveStopped || abbreviates(name, "leave-stopped", "leave-s")
			c.LeaveRunning = c.LeaveRunning || abbreviates(name, "leave-running", "leave-r")
			c.FreezeCgroup = c.FreezeCgroup || abbreviates(name, "freeze-cgroup", "fr")
		case len(arg) > 1 && arg[0] == '-':
			for j, option := range arg[1:] {
				c.LeaveStopped = c.LeaveStopped || option == 's'
				c.LeaveRunning = c.LeaveRunning || option == 'R'
				at := strings.IndexRune(shortOptions, option)
				if at < 0 || !strings.HasPrefix(shortOptions[at+1:], ":") {
					continue
				}
				// The rest of the cluster is its argument, or the next word is,
				// unless its argument is optional.
				if j+2 == len(arg) && !strings.HasPrefix(shortOptions[at+1:], "::") {
					i++
				}
				break
			}
		case arg == "swrk" || arg == "service":
			c.RPC = true
		}
	}
}

func abbreviates(name, option, shortest string) bool {
	return strings.HasPrefix(option, name) && strings.HasPrefix(name, shortest)
}

// configurationFiles lists the files that criu reads its options from.
func configurationFiles(args []string, home string) []string {
	files := []string{"/etc/criu/default.conf", filepath.Join(home, ".criu", "default.conf")}
	for i, arg := range args {
		name, value, hasValue := strings.Cut(arg, "=")
		switch {
		case name == "--no-default-config":
			return nil
		case name == "--config" && hasValue:
			return []string{value}
		case name == "--config" && i+1 < len(args):
			return []string{args[i+1]}
		}
	}
	return files
}

// readConfiguration finds the options in one of criu's configuration files: a
// long option a line, without its dashes.
func (c *Criu) readConfiguration(text string) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\n=", r) })
		if len(fields) == 0 {
			continue
		}
		c.LeaveStopped = c.LeaveStopped || fields[0] == "leave-stopped"
		c.LeaveRunning = c.LeaveRunning || fields[0] == "leave-running"
		c.FreezeCgroup = c.FreezeCgroup || fields[0] == "freeze-cgroup"
	}
}
