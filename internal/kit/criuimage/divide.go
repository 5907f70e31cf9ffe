package criuimage

import (
	"fmt"
	"math"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/pagemap"
)

// MinDivided is how many bytes a process must have in common with an earlier image: below it, two
// more files do not pay.
const MinDivided = 1 << 20

// maxPagemapBytes bounds the pagemaps that are compared, and with them the memory for it.
const maxPagemapBytes = 16 << 20

var pagemapName = regexp.MustCompile(`^pagemap-(shmem-)?([0-9]{1,10})\.img$`)

// Memory is the memory of a process in an image, or shared memory: a pagemap and its file of pages.
type Memory struct {
	pagemap.Dump
	// Name is that of the pagemap, and PagesName that of the file of pages, as seen from the root in
	// which they were opened.
	Name, PagesName string
	// Own are areas whose pages must not be left to a parent: see [Areas].
	Own []pagemap.Range
	// File is the file of pages.
	File *os.File
}

// Close closes the file of pages.
func (m *Memory) Close() error { return m.File.Close() }

// OpenMemory opens the memory of a pagemap.
func OpenMemory(root *os.Root, name string) (*Memory, error) {
	f, info, err := OpenIn(root, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info.Size() > maxPagemapBytes {
		return nil, fmt.Errorf("%s has %d bytes", name, info.Size())
	}
	m := &Memory{Name: name}
	if m.Map, err = pagemap.Read(f); err != nil {
		return nil, err
	}
	m.PagesName = path.Join(path.Dir(name), m.Map.PagesName())
	if m.File, info, err = OpenIn(root, m.PagesName); err != nil {
		return nil, err
	}
	m.Pages, m.Bytes = m.File, info.Size()
	return m, nil
}

// Divide calls do for the memory in an image, of which names are the files, as far as part of it
// may be left to a parent. The largest area that the host maps writable although nobody may write
// it is largest: see [LargestArea]. What do is called with belongs to it.
func Divide(root *os.Root, names []string, largest uint64, do func(*Memory) error) error {
	if largest == 0 || slices.ContainsFunc(names, func(name string) bool { return name == ParentName || strings.HasPrefix(name, ParentName+"/") }) {
		return nil
	}
	owners := make(map[string]int) // of files of pages
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		if !pagemapName.MatchString(name) {
			return true
		}
		m, err := OpenMemory(root, name)
		if err != nil {
			return true // criu knows what it has written
		}
		owners[m.PagesName]++
		m.Close()
		return false
	})
	for _, name := range names {
		m, err := OpenMemory(root, name)
		if err != nil {
			continue
		}
		if owners[m.PagesName] != 1 || !m.isDivisible(root, largest) {
			m.Close()
			continue
		}
		if err := do(m); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (m *Memory) isDivisible(root *os.Root, largest uint64) bool {
	if m.Bytes < MinDivided || m.Validate() != nil {
		return false
	}
	match := pagemapName.FindStringSubmatch(m.Name)
	if match[1] != "" {
		return true // shared memory has no areas
	}
	pid, err := strconv.Atoi(match[2])
	if err != nil {
		return false
	}
	areas, err := ReadAreas(root.Name(), pid)
	m.Own = areas.Own
	return err == nil && areas.LargestReadOnly <= largest
}

// LargestArea returns how large an area may be that criu maps writable although nobody may write
// it: see [Areas]. The kernel refuses what is larger than its memory, or refuses nothing, or never
// promises more than it has: see proc(5), /proc/sys/vm/overcommit_memory. It is 0 if nothing may be
// left to a parent on this host.
func LargestArea() uint64 {
	mode, err := os.ReadFile("/proc/sys/vm/overcommit_memory")
	if err != nil {
		return 0
	}
	switch strings.TrimSpace(string(mode)) {
	case "1":
		return math.MaxUint64
	case "0":
		var host unix.Sysinfo_t
		if unix.Sysinfo(&host) != nil {
			return 0
		}
		return host.Totalram * uint64(host.Unit) / 2
	}
	return 0
}
