package preflight

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
)

// OpenFiles is what /proc shows that a process holds of the NVIDIA driver, and of what criu
// cannot dump.
type OpenFiles struct {
	Libcuda   bool     // a libcuda is mapped; without it this cannot be a CUDA process
	devices   []string // NVIDIA device files, open or mapped
	openers   []string // mapped libraries of NVIDIA's, besides libcuda, that open device files by themselves
	hwloc     bool     // hwloc is mapped, which looks for GPUs
	nvidia    deviceUse
	nccl      []string // NCCL's library or its shared memory, open or mapped
	ring      bool     // an io_uring is open or mapped
	ringUsers []string // the names of mapped libraries that use an io_uring if they can
	program   string   // what it executes
	open      []openFile
	// directories are its working directory and its root.
	directories  []usedFile
	sharedMemfds []string // the addresses at which memfds are mapped shared
	unsupported
}

// lookedByOpenCL reports whether hwloc (which Open MPI uses, and with that mpi4py, and with that
// PyTorch Lightning) may have looked for GPUs: it asks OpenCL, which then keeps device files
// open for ever.
func (f OpenFiles) lookedByOpenCL() bool {
	return f.hwloc && len(f.openers) > 0 && !slices.ContainsFunc(f.openers, func(path string) bool { return !openCLFile.MatchString(path) })
}

// deviceUse is how a process holds NVIDIA device files.
type deviceUse struct {
	descriptors []int
	mappings    []proc.Range // neighbours are joined
}

func (u *deviceUse) addMapping(r proc.Range) {
	if n := len(u.mappings); n > 0 && u.mappings[n-1].End == r.Start {
		u.mappings[n-1].End = r.End
		return
	}
	u.mappings = append(u.mappings, r)
}

var (
	libcudaFile  = regexp.MustCompile(`/libcuda[^/]*\.so[^/]*$`)
	nvidiaDevice = regexp.MustCompile(`/dev/nvidia[^/]*(/[^/]+)?$`)
	openerFile   = regexp.MustCompile(`/lib(nvidia-(opencl|glcore|eglcore|cfg|fbc)|(GLX|EGL|vdpau)_nvidia)\.so[^/]*$`)
	openCLFile   = regexp.MustCompile(`/libnvidia-opencl\.so[^/]*$`)
	hwlocFile    = regexp.MustCompile(`/(hwloc_opencl|libhwloc)\.so[^/]*$`)
	ncclFile     = regexp.MustCompile(`/libnccl\.so[^/]*$|/dev/shm/nccl-[^/]*$`)
	// uvloop, Node.js and some builds of PyTorch have libuv inside.
	ringUser = regexp.MustCompile(`/(liburing|libuv|libtorch_cpu)[^/]*\.so[^/]*$|/uvloop/[^/]+\.so$|/node(js)?$`)
)

const (
	ioURing = "anon_inode:[io_uring]"
	tooLong = "a file whose path is longer than 4 KiB"
)

// OpenFilesOf reads a process's mappings and descriptors. The process need not run.
func OpenFilesOf(pid int) (OpenFiles, error) {
	var f OpenFiles
	f.mounts, f.pidfds = make(map[string]usedFile), make(map[string]usedFile)
	devices, openers, nccl, ringUsers := make(set), make(set), make(set), make(set)
	mappings, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return f, proc.GoneOr(pid, err)
	}
	defer mappings.Close()
	lines := bufio.NewScanner(mappings)
	for lines.Scan() {
		line := lines.Text()
		start := strings.IndexAny(line, "/[")
		if inode := strings.Index(line, "anon_inode:"); inode >= 0 && (start < 0 || inode < start) {
			start = inode
		}
		if start < 0 {
			continue
		}
		addresses, _, _ := strings.Cut(line, " ")
		f.addMapping(pid, addresses, line[start:])
		if strings.HasPrefix(line[start:], "/memfd:") && strings.Contains(line[:start], "s ") {
			f.sharedMemfds = append(f.sharedMemfds, addresses)
		}
		path := strings.TrimSuffix(line[start:], " (deleted)")
		f.ring = f.ring || path == ioURing
		f.Libcuda = f.Libcuda || libcudaFile.MatchString(path)
		if nvidiaDevice.MatchString(path) {
			var r proc.Range
			if _, err := fmt.Sscanf(line, "%x-%x", &r.Start, &r.End); err != nil {
				return f, fmt.Errorf("/proc/%d/maps: %q: %w", pid, line, err)
			}
			if isDevice(fmt.Sprintf("/proc/%d/map_files/%x-%x", pid, r.Start, r.End)) {
				devices[path] = true
				f.nvidia.addMapping(r)
			}
		}
		openers.addIf(openerFile, path)
		f.hwloc = f.hwloc || hwlocFile.MatchString(path)
		nccl.addIf(ncclFile, path)
		ringUsers.addIf(ringUser, path)
	}
	if err := lines.Err(); err != nil {
		return f, proc.GoneOr(pid, err)
	}
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return f, proc.GoneOr(pid, err)
	}
	for _, entry := range entries {
		link := filepath.Join(dir, entry.Name())
		path, err := os.Readlink(link)
		if errors.Is(err, unix.ENAMETOOLONG) {
			f.refuse(tooLong, "open (descriptor "+entry.Name()+")")
		}
		if err != nil {
			continue // closed in the meantime
		}
		f.open = append(f.open, openFile{pid, entry.Name(), path})
		f.addDescriptor(f.open[len(f.open)-1])
		path = strings.TrimSuffix(path, " (deleted)")
		if nvidiaDevice.MatchString(path) && isDevice(link) {
			devices[path] = true
			fd, err := strconv.Atoi(entry.Name())
			if err != nil {
				return f, fmt.Errorf("%s: %w", dir, err)
			}
			f.nvidia.descriptors = append(f.nvidia.descriptors, fd)
		}
		f.ring = f.ring || path == ioURing
		nccl.addIf(ncclFile, path)
	}
	f.devices, f.openers, f.nccl = devices.sorted(), openers.sorted(), nccl.sorted()
	f.ringUsers = ringUsers.sorted()
	for _, name := range []string{"exe", "cwd", "root"} {
		path, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), name))
		if errors.Is(err, unix.ENAMETOOLONG) {
			f.refuse(tooLong, "as its "+name)
		}
		link := filepath.Join("/proc", strconv.Itoa(pid), name)
		if name != "exe" && err == nil {
			f.directories = append(f.directories, usedFile{path, "as its " + name, link})
		}
		if name == "exe" && err == nil {
			f.program = strings.TrimSuffix(path, " (deleted)")
			_, _, mount := fileOf(link)
			f.mounts[mount] = usedFile{f.program, "as its program", link}
		}
	}
	return f, nil
}

// isDevice reports whether a link in /proc leads to a character device. A program may have its
// own files in a folder such as /home/me/dev/nvidia-tests. It is true if that cannot be told.
func isDevice(link string) bool {
	info, err := os.Stat(link)
	return err != nil || info.Mode()&os.ModeCharDevice != 0
}

// set is a set of paths.
type set map[string]bool

func (s set) addIf(pattern *regexp.Regexp, path string) bool {
	matches := pattern.MatchString(path)
	if matches {
		s[path] = true
	}
	return matches
}

func (s set) sorted() []string { return slices.Sorted(maps.Keys(s)) }
