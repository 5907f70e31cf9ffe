package inventory

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// Process is what /proc shows of a process. What is closed or unmapped while it is read is left out.
type Process struct {
	Of  *Tree // nil if the process was looked at alone
	PID int

	mapped      once[mappings]
	open, links once[[]*File]
	namespaces  once[map[string]string]
	threads     once[[]int]
	status      once[proc.Status]
	environment once[[]string]
	driver      once[DriverUse]
}

type mappings struct {
	all   []Mapping
	names []string
}

// Now looks at one process as it is at this moment, for one question. The process need not be stopped.
func Now(pid int) (*Process, error) {
	p := &Process{PID: pid}
	return p, p.read()
}

// read reads what every look asks for.
func (p *Process) read() error {
	if _, err := p.mapped.get(p.readMappings); err != nil {
		return err
	}
	if _, err := p.open.get(func() ([]*File, error) { return p.readDescriptors(nil) }); err != nil {
		return proc.GoneOr(p.PID, err)
	}
	_, err := p.status.get(func() (proc.Status, error) { return proc.ReadStatus(p.PID) })
	return err
}

// Mapped returns the mappings that have a name, by address.
func (p *Process) Mapped() []Mapping {
	m, _ := p.mapped.get(p.readMappings)
	return m.all
}

// MappedNames returns the names of what is mapped, each once.
func (p *Process) MappedNames() []string {
	m, _ := p.mapped.get(p.readMappings)
	return m.names
}

// readMappings reads the mappings that have a name. A program of PyTorch has thousands, and its workers
// are looked at while the job is paused, so they are not parsed any further.
func (p *Process) readMappings() (found mappings, err error) {
	names := make(map[string]bool)
	err = proc.EachMapping(p.PID, func(line string) error {
		r, fields, link, err := proc.SplitMapping(line)
		if err != nil || link == "" {
			return err
		}
		f := &File{Of: p, At: fmt.Sprintf("map_files/%x-%x", r.Start, r.End), Link: link}
		access := fields[1] // such as rw-s
		found.all = append(found.all, Mapping{f, r, strings.HasSuffix(access, "s"), strings.Contains(access, "w"), fields})
		if name := f.Name(); !names[name] {
			names[name] = true
			found.names = append(found.names, name)
		}
		return nil
	})
	return found, err
}

// MapsAny reports whether the name of something mapped matches a pattern.
func (p *Process) MapsAny(pattern *regexp.Regexp) bool {
	return slices.ContainsFunc(p.MappedNames(), pattern.MatchString)
}

// MappedMatching returns the names of what is mapped that match a pattern, in order.
func (p *Process) MappedMatching(pattern *regexp.Regexp) []string {
	found := slices.DeleteFunc(slices.Clone(p.MappedNames()), func(name string) bool { return !pattern.MatchString(name) })
	slices.Sort(found)
	return found
}

// Open returns the descriptors.
func (p *Process) Open() []*File {
	files, _ := p.open.get(func() ([]*File, error) { return p.readDescriptors(nil) })
	return files
}

// readDescriptors reads the descriptors, or only those whose links are wanted.
func (p *Process) readDescriptors(wanted map[string]bool) (files []*File, err error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID))
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		f := p.follow("fd/" + entry.Name())
		if f != nil && (wanted == nil || wanted[f.Link]) {
			f.Number = entry.Name()
			files = append(files, f)
		}
	}
	return files, nil
}

// Links returns the program of the process, its working directory and its root, as far as it still has them.
func (p *Process) Links() []*File {
	links, _ := p.links.get(func() (links []*File, err error) {
		for _, at := range []string{AtProgram, AtDirectory, AtRoot} {
			if f := p.follow(at); f != nil {
				links = append(links, f)
			}
		}
		return links, nil
	})
	return links
}

// follow reads a link below /proc/PID; nil if it is gone.
func (p *Process) follow(at string) *File {
	f := &File{Of: p, At: at}
	link, err := os.Readlink(f.Path())
	switch {
	case errors.Is(err, unix.ENAMETOOLONG):
		link = TooLong
	case err != nil:
		return nil
	}
	f.Link = link
	return f
}

// Program is what the process executes; empty if that is not known.
func (p *Process) Program() string {
	if links := p.Links(); len(links) > 0 && links[0].At == AtProgram {
		return links[0].Name()
	}
	return ""
}

// NamespaceKinds are the kinds of namespaces that a process is in.
var NamespaceKinds = []string{
	"mnt", "net", "user", "pid", "pid_for_children", "ipc", "uts", "cgroup", "time", "time_for_children",
}

// Namespace returns the namespace of a kind: see [NamespaceOf].
func (p *Process) Namespace(kind string) string {
	all, _ := p.namespaces.get(func() (map[string]string, error) {
		all := make(map[string]string)
		for _, kind := range NamespaceKinds {
			all[kind] = NamespaceOfProcess(p.PID, kind)
		}
		return all, nil
	})
	return all[kind]
}

// InOurs reports whether the process is in this program's namespace of a kind.
func (p *Process) InOurs(kind string) bool {
	return p.Namespace(kind) != "" && p.Namespace(kind) == NamespaceOf("self", kind)
}

// Threads returns the threads; none if the process has ended.
func (p *Process) Threads() []int {
	threads, _ := p.threads.get(func() ([]int, error) { return proc.Threads(p.PID) })
	return threads
}

// Status returns the status; it is empty if the process has ended.
func (p *Process) Status() proc.Status {
	status, _ := p.status.get(func() (proc.Status, error) { return proc.ReadStatus(p.PID) })
	return status
}

// Settings returns what the process has been given that criu does not restore; nil if that is nothing.
func (p *Process) Settings() (*proc.Settings, error) {
	status, err := p.status.get(func() (proc.Status, error) { return proc.ReadStatus(p.PID) })
	if err != nil {
		return nil, err
	}
	var sockets []int
	for _, f := range p.Open() {
		if number, err := strconv.Atoi(f.Number); err == nil && strings.HasPrefix(f.Link, "socket:") {
			sockets = append(sockets, number)
		}
	}
	return proc.ReadSettings(p.PID, status, p.Threads(), sockets)
}

// Environment is that with which the process was started, unless it has put something else there.
func (p *Process) Environment() []string {
	environment, _ := p.environment.get(func() ([]string, error) {
		text, err := proc.ReadText(fmt.Sprintf("/proc/%d/environ", p.PID))
		return strings.Split(string(text), "\x00"), err
	})
	return environment
}
