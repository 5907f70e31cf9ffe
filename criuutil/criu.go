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

	"cucriu/criuutil/proc"
)

// Criu is a running criu, as an action script can see it.
type Criu struct {
	*proc.Process
	// What its command line and its configuration files say. Under RPC (criu
	// swrk, criu service) the options come over a socket and are not to be seen.
	LeaveStopped bool // -s
	LeaveRunning bool // -R
	FreezeCgroup bool // --freeze-cgroup
	RPC          bool // driven over RPC
	// PagesElsewhere says that not all of the memory goes into the image
	// directory: to a page server, or only what changed since an earlier image.
	PagesElsewhere bool
	LazyPages      bool // --lazy-pages: sent on demand, once post-dump is over
	// LibDir is the folder whose plugins it loads, empty if it loads none.
	LibDir string
	// LibDirGiven says that the folder was named, and not left to the default:
	// then criu fails if it is missing.
	LibDirGiven bool
	// RootParent will be the parent of the restored root task, nil if criu is.
	RootParent *proc.Ident
}

// imageDir is the form of CRTOOLS_IMAGE_DIR: a descriptor of criu itself.
var imageDir = regexp.MustCompile(`^/proc/([1-9][0-9]*)/fd/([0-9]+)$`)

// CriuOf takes hold of the criu that runs an action script with this
// CRTOOLS_IMAGE_DIR. The script itself must be a descendant of it, so that a
// made-up environment cannot name another process.
func CriuOf(imageDirVariable string) (*Criu, error) {
	pid, err := criuPID(imageDirVariable)
	if err != nil {
		return nil, err
	}
	return OpenCriu(pid)
}

// criuPID is the pid of the criu that runs this action script.
func criuPID(imageDirVariable string) (int, error) {
	match := imageDir.FindStringSubmatch(imageDirVariable)
	if match == nil {
		return 0, fmt.Errorf("CRTOOLS_IMAGE_DIR is %q, and criu sets it to /proc/PID/fd/N: was this started by criu?", imageDirVariable)
	}
	pid, err := strconv.Atoi(match[1])
	if err != nil {
		return 0, fmt.Errorf("CRTOOLS_IMAGE_DIR: %w", err)
	}
	self, err := proc.Self()
	if err != nil {
		return 0, err
	}
	ancestor, err := proc.IsAncestor(pid, self)
	if err != nil {
		return 0, err
	}
	if !ancestor {
		return 0, fmt.Errorf("CRTOOLS_IMAGE_DIR names process %d, which is not an ancestor of this action script: was this started by criu?", pid)
	}
	return pid, nil
}

// IdentifyCriu is [CriuOf] for a program that [proc.IsInside]: it cannot take hold of
// criu, but it can tell which one it is.
func IdentifyCriu(imageDirVariable string) (proc.Ident, error) {
	pid, err := criuPID(imageDirVariable)
	if err != nil {
		return proc.Ident{}, err
	}
	return proc.Identify(pid)
}

// OpenCriu takes hold of a running criu and finds out its options.
func OpenCriu(pid int) (*Criu, error) {
	process, err := proc.Open(pid)
	if err != nil {
		return nil, fmt.Errorf("criu: %w", err)
	}
	args, err := arguments(pid)
	if err != nil {
		return nil, errors.Join(err, process.Close())
	}
	criu := &Criu{Process: process}
	exe, _ := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
	// An action script inherits criu's environment, and criu that of who drives it.
	if err := criu.readOptions(exe, args, os.Getenv); err != nil {
		return nil, errors.Join(err, process.Close())
	}
	return criu, nil
}

// Executable is a path under which criu's program can be run, even if its file
// has been replaced since.
func (c *Criu) Executable() string { return fmt.Sprintf("/proc/%d/exe", c.PID) }

// readOptions finds the options where criu does, of which the last one counts:
// its configuration files, then its command line.
func (c *Criu) readOptions(exe string, args []string, getenv func(string) string) error {
	for _, file := range configurationFiles(args, getenv) {
		if err := c.readConfigurationFile(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	c.readArguments(args)
	if c.LibDir == "" {
		c.LibDir = getenv("CRIU_LIBS_DIR")
	}
	c.LibDirGiven = c.LibDir != ""
	if !c.LibDirGiven {
		c.LibDir = defaultLibDir(exe)
	}
	return nil
}

// defaultLibDir is the folder that a criu was built to load plugins from: the
// packages' one, or that of the prefix that its makefile defaults to. criu goes
// without plugins if it is missing.
func defaultLibDir(exe string) string {
	dir := "/usr/lib/criu"
	if strings.HasPrefix(exe, "/usr/local/") {
		dir = "/usr/local/lib/criu"
	}
	if _, err := os.Stat(dir); err != nil {
		return ""
	}
	return dir
}

// shortOptions are criu's, in getopt's notation (crtools.c of criu 4.2).
const shortOptions = "dSsRt:hD:o:v::x::Vr:jJ:lW:L:M:"

// arguments is a process's command line. While it serves a request over RPC,
// criu's is a title, "criu: dump --rpc -t 4711", and the rest of the old one.
func arguments(pid int) ([]string, error) {
	var args []string
	process, err := procfs.NewProc(pid)
	if err == nil {
		args, err = process.CmdLine()
	}
	if err != nil {
		return nil, proc.GoneOr(pid, err)
	}
	if words := strings.Fields(strings.Join(args[:min(1, len(args))], "")); len(words) > 1 && strings.HasSuffix(words[0], ":") {
		return words, nil
	}
	return args, nil
}

// readArguments finds the options in criu's command line as getopt_long does:
// clusters of short options, unambiguous abbreviations of long ones.
func (c *Criu) readArguments(args []string) {
	for i := 1; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "--":
			return
		case strings.HasPrefix(arg, "--"):
			name, value, hasValue := strings.Cut(arg[2:], "=")
			c.LeaveStopped = c.LeaveStopped || abbreviates(name, "leave-stopped", "leave-s")
			c.LeaveRunning = c.LeaveRunning || abbreviates(name, "leave-running", "leave-r")
			c.FreezeCgroup = c.FreezeCgroup || abbreviates(name, "freeze-cgroup", "fr")
			c.RPC = c.RPC || name == "rpc"
			c.PagesElsewhere = c.PagesElsewhere || abbreviates(name, "page-server", "pa") ||
				abbreviates(name, "prev-images-dir", "pr") || abbreviates(name, "lazy-pages", "la") || abbreviates(name, "stream", "str")
			c.LazyPages = c.LazyPages || abbreviates(name, "lazy-pages", "la")
			if abbreviates(name, "libdir", "lib") {
				if !hasValue && i+1 < len(args) {
					i++
					value = args[i]
				}
				c.LibDir = value
			}
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
				value := arg[j+2:]
				if value == "" && !strings.HasPrefix(shortOptions[at+1:], "::") {
					if i++; i < len(args) {
						value = args[i]
					}
				}
				if option == 'L' {
					c.LibDir = value
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

// configurationFiles lists the files that criu reads its options from, in its
// order (config.c of criu 4.2).
func configurationFiles(args []string, getenv func(string) string) []string {
	files := []string{"/etc/criu/default.conf", filepath.Join(getenv("HOME"), ".criu", "default.conf")}
	named := ""
	for i, arg := range args {
		name, value, hasValue := strings.Cut(arg, "=")
		switch {
		case name == "--no-default-config":
			files = nil
		case name == "--config" && hasValue:
			files, named = nil, value
		case name == "--config" && i+1 < len(args):
			files, named = nil, args[i+1]
		}
	}
	for _, file := range []string{getenv("CRIU_CONFIG_FILE"), named} {
		if file != "" {
			files = append(files, file)
		}
	}
	return files
}

func (c *Criu) readConfigurationFile(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("criu's configuration: %w", err)
	}
	c.readConfiguration(string(data))
	return nil
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
		c.LazyPages = c.LazyPages || fields[0] == "lazy-pages"
		switch fields[0] {
		case "page-server", "prev-images-dir", "lazy-pages", "stream":
			c.PagesElsewhere = true
		case "libdir":
			if len(fields) > 1 {
				c.LibDir = strings.Trim(fields[1], `"`)
			}
		}
	}
}
