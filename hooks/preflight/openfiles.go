package preflight

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"cucriu/criuutil/proc"
)

// OpenFiles is what /proc shows that a process holds of the NVIDIA driver, and of what criu
// cannot dump.
type OpenFiles struct {
	Libcuda    bool     // a libcuda is mapped; without it this cannot be a CUDA process
	devices    []string // NVIDIA device files, open or mapped
	nccl       []string // NCCL's library or its shared memory, open or mapped
	anonymous  []string // anonymous inodes that criu cannot dump, open or mapped
	ringUsers  []string // the names of mapped libraries that use an io_uring if they can
	infiniband []string // open InfiniBand device files
}

var (
	libcudaFile      = regexp.MustCompile(`/libcuda[^/]*\.so[^/]*$`)
	nvidiaDevice     = regexp.MustCompile(`/dev/nvidia[^/]*(/[^/]+)?$`)
	ncclFile         = regexp.MustCompile(`/libnccl\.so[^/]*$|/dev/shm/nccl-[^/]*$`)
	infinibandDevice = regexp.MustCompile(`/dev/infiniband/[^/]+$`)
	// The kinds that criu 4.2.1 was seen to refuse.
	undumpableInode = regexp.MustCompile(`^anon_inode:\[(io_uring|userfaultfd|perf_event)\]$`)
	// uvloop, Node.js and some builds of PyTorch have libuv inside.
	ringUser = regexp.MustCompile(`/(liburing|libuv|libtorch_cpu)[^/]*\.so[^/]*$|/uvloop/[^/]+\.so$|/node(js)?$`)
)

// OpenFilesOf reads a process's mappings and descriptors. The process need not run.
func OpenFilesOf(pid int) (OpenFiles, error) {
	var f OpenFiles
	devices, nccl, anonymous, ringUsers, infiniband := make(set), make(set), make(set), make(set), make(set)
	mappings, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return f, proc.GoneOr(pid, err)
	}
	defer mappings.Close()
	lines := bufio.NewScanner(mappings)
	for lines.Scan() {
		line := lines.Text()
		start := strings.IndexByte(line, '/')
		if start < 0 {
			if inode := strings.Index(line, "anon_inode:"); inode >= 0 {
				anonymous.addIf(undumpableInode, line[inode:])
			}
			continue
		}
		path := strings.TrimSuffix(line[start:], " (deleted)")
		f.Libcuda = f.Libcuda || libcudaFile.MatchString(path)
		devices.addIf(nvidiaDevice, path)
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
		path, err := os.Readlink(filepath.Join(dir, entry.Name()))
		if err != nil {
			continue // closed in the meantime
		}
		path = strings.TrimSuffix(path, " (deleted)")
		devices.addIf(nvidiaDevice, path)
		nccl.addIf(ncclFile, path)
		anonymous.addIf(undumpableInode, path)
		infiniband.addIf(infinibandDevice, path)
	}
	f.devices, f.nccl = devices.sorted(), nccl.sorted()
	f.anonymous, f.infiniband = anonymous.sorted(), infiniband.sorted()
	f.ringUsers = ringUsers.sorted()
	return f, nil
}

// set is a set of paths.
type set map[string]bool

func (s set) addIf(pattern *regexp.Regexp, path string) {
	if pattern.MatchString(path) {
		s[path] = true
	}
}

func (s set) sorted() []string { return slices.Sorted(maps.Keys(s)) }
