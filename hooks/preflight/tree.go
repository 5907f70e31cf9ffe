package preflight

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"cucriu/criuutil/proc"
)

// tree is a tree of processes with what they have open, read once.
type tree struct {
	pids []int
	open []openFile
}

// openFile is a descriptor of a process.
type openFile struct {
	pid    int
	number string // of the descriptor
	link   string // where its link in /proc leads
}

// path is the link in /proc, by which the file itself can be reached.
func (f openFile) path() string {
	return filepath.Join("/proc", strconv.Itoa(f.pid), "fd", f.number)
}

// info is what /proc tells of the descriptor; it is empty if the descriptor has been closed.
func (f openFile) info() proc.DescriptorInfo {
	info, _ := proc.ReadDescriptor(f.pid, f.number)
	return info
}

// inode returns the inode of a socket or a pipe, which the kind names.
func (f openFile) inode(kind string) (uint64, bool) {
	number, isKind := strings.CutPrefix(f.link, kind+":[")
	inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
	return inode, isKind && err == nil
}

// readTree reads the tree below root. What ends or is closed meanwhile is left out.
func readTree(root int) (tree, error) {
	pids, err := proc.Tree(root)
	if err != nil {
		return tree{}, err
	}
	t := tree{pids: pids}
	for _, pid := range pids {
		t.open = append(t.open, openFilesOf(pid)...)
	}
	return t, nil
}

func openFilesOf(pid int) []openFile {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	open := make([]openFile, 0, len(entries))
	for _, entry := range entries {
		if link, err := os.Readlink(filepath.Join(dir, entry.Name())); err == nil {
			open = append(open, openFile{pid, entry.Name(), link})
		}
	}
	return open
}

// inodes returns a descriptor for each inode of a kind.
func (t tree) inodes(kind string) map[uint64]openFile {
	found := make(map[uint64]openFile)
	for _, f := range t.open {
		if inode, is := f.inode(kind); is {
			if _, known := found[inode]; !known {
				found[inode] = f
			}
		}
	}
	return found
}

// holdersOutside finds, for inodes of a kind, processes outside of the tree that have them open.
func (t tree) holdersOutside(kind string, inodes map[uint64]openFile) (map[uint64][]openFile, error) {
	all, err := proc.All()
	if err != nil {
		return nil, err
	}
	inside := make(map[int]bool)
	for _, pid := range t.pids {
		inside[pid] = true
	}
	found := make(map[uint64][]openFile)
	for _, pid := range all {
		if inside[pid] {
			continue
		}
		for _, f := range openFilesOf(pid) {
			if inode, is := f.inode(kind); is {
				if _, wanted := inodes[inode]; wanted {
					found[inode] = append(found[inode], f)
				}
			}
		}
	}
	return found, nil
}
