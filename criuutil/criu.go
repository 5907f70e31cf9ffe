package criuutil

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

	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/proc"
)

// Ident names one incarnation of a process on this boot of the host.
type Ident struct {
	PID          int
	StartTime    uint64 // in clock ticks since the host booted, on its clock
	PIDNamespace uint64 // the inode of the namespace in which the process has the pid; 0 if that is not known
}

func (id Ident) String() string { return proc.Ident(id).String() }

// Criu is a running criu, as an action script sees it.
type Criu struct {
	Ident
	process *proc.Process
	// Its options, read from its command line and its configuration files. Under RPC (criu
	// swrk, criu service) criu gets its options over a socket, where they cannot be read.
	LeaveStopped bool // -s
	LeaveRunning bool // -R
	FreezeCgroup bool // --freeze-cgroup
	RPC          bool // driven over RPC
	// PagesElsewhere says that some of the memory does not go into the image directory: it
	// goes to a page server, or only what changed since an earlier image is written.
	PagesElsewhere bool
	LazyPages      bool // --lazy-pages: pages are sent on demand, after post-dump
	AutoDedup      bool // --auto-dedup: a restore removes from the image what it has read
	// LibDir is the folder from which criu loads plugins. It is empty if criu loads none.
	LibDir string
	// LibDirGiven says that an option or the environment named the folder. criu then fails
	// if the folder is missing; without its default folder it runs without plugins.
	LibDirGiven bool
	// badScript is an action script that cannot be run, and scriptFile the configuration file that names it.
	badScript, scriptFile string
	// RootParent is the process that will be the parent of the restored root task. It is
	// nil if criu itself will be.
	RootParent *Ident
}

// imageDir matches CRTOOLS_IMAGE_DIR, which names one of criu's own descriptors.
var imageDir = regexp.MustCompile(`^/proc/([1-9][0-9]*)/fd/([0-9]+)$`)

// CriuOf opens the criu that runs an action script with this CRTOOLS_IMAGE_DIR. The script
// must be a descendant of that criu, so that a forged environment cannot name another
// process.
func CriuOf(imageDirVariable string) (*Criu, error) {
	pid, err := criuPID(imageDirVariable)
	if err != nil {
		return nil, err
	}
	return OpenCriu(pid)
}

// criuPID returns the pid of the criu that runs this action script.
func criuPID(imageDirVariable string) (int, error) {
	match := imageDir.FindStringSubmatch(imageDirVariable)
	if match == nil {
		return 0, fmt.Errorf("CRTOOLS_IMAGE_DIR is %q, and criu sets it to /proc/PID/fd/N: was this program started by criu?", imageDirVariable)
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
		return 0, fmt.Errorf("CRTOOLS_IMAGE_DIR names process %d, which is not an ancestor of this action script: was this program started by criu?", pid)
	}
	return pid, nil
}

// IdentifyCriu is [CriuOf] for a program in an inner pid namespace.
// Such a program cannot open criu, but it can tell which process criu is.
func IdentifyCriu(imageDirVariable string) (Ident, error) {
	pid, err := criuPID(imageDirVariable)
	if err != nil {
		return Ident{}, err
	}
	id, err := proc.Identify(pid)
	return Ident(id), err
}

// OpenCriu opens a running criu and reads its options.
func OpenCriu(pid int) (*Criu, error) {
	process, err := proc.Open(pid)
	if err != nil {
		return nil, fmt.Errorf("criu: %w", err)
	}
	args, err := arguments(pid)
	if err != nil {
		return nil, errors.Join(err, process.Close())
	}
	criu := &Criu{Ident: Ident(process.Ident), process: process}
	exe, _ := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
	// An action script inherits criu's environment, and criu inherits that of its caller.
	if err := criu.readOptions(exe, args, os.Getenv); err != nil {
		return nil, errors.Join(err, process.Close())
	}
	return criu, nil
}

// Close lets go of the criu, which stays known by its [Ident].
func (c *Criu) Close() error { return c.process.Close() }

// Executable returns a path that runs criu's program, even if its file has been replaced
// since.
func (c *Criu) Executable() string { return fmt.Sprintf("/proc/%d/exe", c.PID) }

// readOptions reads the options from the places where criu reads them, in criu's order: its
// configuration files, then its command line. The last value counts.
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

// defaultLibDir returns the folder from which criu loads plugins unless told otherwise: the
// one that packages use, or the one below /usr/local, the default prefix of criu's
// makefile. If the folder is missing, criu runs without plugins, and the result is empty.
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

// shortOptions are criu's short options in getopt's notation (crtools.c of criu 4.2).
const shortOptions = "dSsRt:hD:o:v::x::Vr:jJ:lW:L:M:"

// arguments returns the command line of a process. While criu serves a request over RPC, it
// overwrites its command line with a title such as "criu: dump --rpc -t 4711", which the
// rest of the old command line follows.
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

// readArguments reads the options in criu's command line as getopt_long does, with clusters
// of short options and unambiguous abbreviations of long ones.
func (c *Criu) readArguments(args []string) {
	for i := 1; i < len(args); i++ {
		arg := args[i]
		next := func() (value string) {
			if i++; i < len(args) {
				value = args[i]
			}
			return value
		}
		switch {
		case arg == "--":
			return
		case strings.HasPrefix(arg, "--"):
			name, value, hasValue := strings.Cut(arg[2:], "=")
			if !hasValue && abbreviates(name, "libdir", "lib") {
				value = next()
			}
			c.option(name, value)
		case len(arg) > 1 && arg[0] == '-':
			for j, letter := range arg[1:] {
				at, value := strings.IndexRune(shortOptions, letter), ""
				takesValue := at >= 0 && strings.HasPrefix(shortOptions[at+1:], ":")
				if takesValue {
					// The rest of the cluster is the option's argument. If nothing is left, the
					// argument is the next word, unless it is optional.
					if value = arg[j+2:]; value == "" && !strings.HasPrefix(shortOptions[at+1:], "::") {
						value = next()
					}
				}
				c.option(map[rune]string{'s': "leave-stopped", 'R': "leave-running", 'L': "libdir"}[letter], value)
				if takesValue {
					break
				}
			}
		case arg == "swrk" || arg == "service":
			c.RPC = true
		}
	}
}

// option takes note of one of criu's long options.
func (c *Criu) option(name, value string) {
	is := func(option, shortest string) bool { return abbreviates(name, option, shortest) }
	if stopped, running := is("leave-stopped", "leave-s"), is("leave-running", "leave-r"); stopped || running {
		c.LeaveStopped, c.LeaveRunning = stopped, running // one value of criu's, and the last option counts
	}
	c.FreezeCgroup = c.FreezeCgroup || is("freeze-cgroup", "fr")
	c.RPC = c.RPC || name == "rpc"
	c.AutoDedup = c.AutoDedup || is("auto-dedup", "au")
	c.LazyPages = c.LazyPages || is("lazy-pages", "la")
	c.PagesElsewhere = c.PagesElsewhere || c.LazyPages || is("page-server", "pa") || is("prev-images-dir", "pr") || is("stream", "str")
	if is("libdir", "lib") {
		c.LibDir = value
	}
	if is("action-script", "ac") && value != "" {
		if _, err := exec.LookPath(value); err != nil {
			c.badScript = value
		}
	}
}

func abbreviates(name, option, shortest string) bool {
	return strings.HasPrefix(option, name) && strings.HasPrefix(name, shortest)
}

// configurationFiles lists the files from which criu reads options, in its order (config.c
// of criu 4.2).
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

// usedConfiguration names the files from which a criu without arguments reads options.
func usedConfiguration(getenv func(string) string) string {
	files := slices.DeleteFunc(configurationFiles(nil, getenv), func(file string) bool {
		_, err := os.Stat(file)
		return err != nil
	})
	return strings.Join(files, " or ")
}

// checkScripts fails if an action script that the configuration names cannot be run: criu would fail, and not say
// who has named it.
func (c *Criu) checkScripts() error {
	if c.scriptFile == "" {
		return nil
	}
	text := "criu cannot run the action script %s, which its configuration %s names"
	return fault.New(fmt.Sprintf(text, c.badScript, c.scriptFile), "correct or remove that line")
}

func (c *Criu) readConfigurationFile(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		if errors.Is(err, os.ErrPermission) {
			return fault.Because(err, fmt.Sprintf("cannot read criu's configuration: %v", err), "run as root, or set HOME")
		}
		return fmt.Errorf("cannot read criu's configuration: %w", err)
	}
	before := c.badScript
	if c.readConfiguration(string(data)); c.badScript != before {
		c.scriptFile = file
	}
	return nil
}

// readConfiguration reads the options in one of criu's configuration files. Each line is a
// long option without its dashes.
func (c *Criu) readConfiguration(text string) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\n=", r) })
		if len(fields) > 0 {
			c.option(fields[0], strings.Trim(append(fields, "")[1], `"`))
		}
	}
}
