package preflight

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
)

// ghostLimit is criu's default for the largest unlinked file that it puts into an image,
// in bytes.
const ghostLimit = 1 << 20

// unlinked are files that a tree uses by a name that was removed.
type unlinked struct {
	largest     uint64 // of those without any name: criu puts such a file into the image
	largestPath string
	removed     []RemovedName
}

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
	t, err := readTree(root)
	if err != nil {
		return nil, err
	}
	return t.unlinked().removed, nil
}

// unlinked looks at what the processes have open or mapped.
func (t tree) unlinked() unlinked {
	var u unlinked
	look := func(pid int, path, link string) {
		var stat unix.Stat_t
		if !isUnlinked(link) || unix.Stat(path, &stat) != nil {
			return
		}
		name := strings.TrimSuffix(link, " (deleted)")
		switch kind := stat.Mode & unix.S_IFMT; {
		case stat.Nlink > 0 && kind != unix.S_IFDIR:
			u.removed = append(u.removed, RemovedName{PID: pid, Path: name, Link: path})
		case kind == unix.S_IFREG && uint64(stat.Size) > u.largest:
			u.largest, u.largestPath = uint64(stat.Size), name
		}
	}
	for _, f := range t.open {
		look(f.pid, f.path(), f.link)
	}
	for _, pid := range t.pids {
		text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "maps"))
		if err != nil || !bytes.Contains(text, []byte(" (deleted)\n")) {
			continue // it has ended, or there is none
		}
		mappings, err := proc.Mappings(pid)
		if err != nil {
			continue
		}
		for _, m := range mappings {
			if isUnlinked(m.Pathname) {
				look(pid, filepath.Join("/proc", strconv.Itoa(pid), "map_files", fmt.Sprintf("%x-%x", m.StartAddr, m.EndAddr)), m.Pathname)
			}
		}
	}
	return u
}

// isUnlinked reports whether a link in /proc is that of an unlinked file of a file system.
// criu has other ways for memory that only looks like one.
func isUnlinked(link string) bool {
	if !strings.HasSuffix(link, " (deleted)") {
		return false
	}
	for _, prefix := range []string{"/memfd:", "/dev/zero", "/SYSV", "/[aio]", "/secretmem", "/anon_hugepage", "/dev/nvidia"} {
		if strings.HasPrefix(link, prefix) {
			return false
		}
	}
	return true
}

// ghostNeed returns criu's limit for unlinked files, if its default is too small.
func (u unlinked) ghostNeed() (limit uint32, need Need) {
	const mib = 1 << 20
	size := (u.largest + mib - 1) / mib * mib
	if u.largest <= ghostLimit || size >= 1<<32 {
		return 0, Need{}
	}
	return uint32(size), Need{
		Option: fmt.Sprintf("--ghost-limit %dM", size/mib),
		Why:    fmt.Sprintf("%s is unlinked and in use, and goes into the image", u.largestPath),
	}
}
