package criuimage

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/memfd"

	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/pagemap"
	"cucriu/internal/kit/proc"
)

// ParentName is the name of the directory in which criu looks for memory that is the same in an
// earlier dump.
const ParentName = "parent"

// Match lists the files of images that match a pattern, and after them those of their parent.
func Match(dir, pattern string) ([]string, error) {
	files, err := durable.Match(dir, pattern)
	parents, parentErr := durable.Match(filepath.Join(dir, ParentName), pattern)
	if errors.Is(parentErr, os.ErrNotExist) { // it has none
		parentErr = nil
	}
	return append(files, parents...), errors.Join(err, parentErr)
}

// Restored is what processes take of the host's memory once criu has restored them, at least.
type Restored struct {
	Bytes uint64
	// OtherGroups says that criu moves processes to other control groups than its own.
	OtherGroups bool
}

// ReadRestored reads what the processes of images take. Pages that a process has where its parent has some, too, may be
// its parent's. Huge pages of a pool are taken from that.
func ReadRestored(dir string) (Restored, error) {
	tasks, err := readTasks(dir)
	if err != nil {
		return Restored{}, err
	}
	host, err := readEntry[*inventory.InventoryEntry](dir, "inventory.img", "INVENTORY")
	if err != nil {
		return Restored{}, err
	}
	var m Restored
	pooled := false
	pages := make(map[int][]proc.Range) // by pid
	for _, task := range tasks {
		core, err := readCore(dir, task.PID)
		if err != nil {
			return Restored{}, err
		}
		// Newer versions of criu have it of each thread; 0 is none.
		group := cmp.Or(core.GetThreadCore().GetCgSet(), core.GetTc().GetCgSet(), host.GetRootCgSet())
		m.OtherGroups = m.OtherGroups || group != host.GetRootCgSet()
		if stateOf(core) == stateDead {
			continue
		}
		held, err := readPagemap(dir, fmt.Sprintf("pagemap-%d.img", task.PID))
		if err != nil {
			return Restored{}, err
		}
		areas, err := ReadAreas(dir, task.PID)
		if err != nil {
			return Restored{}, err
		}
		pooled = pooled || len(areas.Own) > 0
		pages[task.PID] = ranges(held.Ranges())
		own := proc.Subtract(pages[task.PID], ranges(areas.Own))
		m.Bytes += proc.Total(proc.Subtract(own, pages[task.PPID]))
	}
	err = eachEntry(dir, "memfd.img", "MEMFD_INODE", func(file *memfd.MemfdInodeEntry) {
		pooled = pooled || file.HugetlbFlag != nil // nobody may have mapped it
	})
	if err != nil {
		return m, err
	}
	shared, err := durable.Match(dir, "pagemap-shmem-*.img")
	if err != nil || pooled { // it may be in huge pages
		return m, err
	}
	for _, path := range shared {
		held, err := readPagemap(dir, filepath.Base(path))
		if err != nil {
			return Restored{}, err
		}
		m.Bytes += proc.Total(ranges(held.Ranges()))
	}
	return m, nil
}

func ranges(of []pagemap.Range) []proc.Range {
	all := make([]proc.Range, len(of))
	for i, r := range of {
		all[i] = proc.Range(r)
	}
	return all
}

func readPagemap(dir, name string) (pagemap.Map, error) {
	f, err := open(dir, name)
	if err != nil {
		return pagemap.Map{}, err
	}
	defer f.Close()
	m, err := pagemap.Read(f)
	if err != nil {
		return pagemap.Map{}, damaged(dir, name, err)
	}
	return m, nil
}

// pagesOf returns the images with memory that a pagemap names. It refuses files of pages that are too
// short: criu waits forever for what is missing there.
func pagesOf(dir, name string) ([]string, error) {
	m, err := readPagemap(dir, name)
	if errors.Is(err, pagemap.ErrUnknown) {
		return nil, nil // criu judges it itself
	}
	if err != nil {
		return nil, err
	}
	names, err := checkPages(dir, ".", m)
	if err != nil || m.ParentBytes() == 0 {
		return names, err
	}
	name = path.Join(ParentName, name)
	if m, err = readPagemap(dir, name); err != nil {
		return nil, err
	}
	parent, err := checkPages(dir, ParentName, m)
	return append(append(names, name), parent...), err
}

func checkPages(dir, sub string, m pagemap.Map) ([]string, error) {
	want := m.Bytes()
	if want == 0 {
		return nil, nil
	}
	name := path.Join(sub, m.PagesName())
	info, err := os.Stat(filepath.Join(dir, name))
	if err != nil {
		return nil, missing(dir, name, err)
	}
	if info.Size() < want {
		return nil, damaged(dir, name, fmt.Errorf("it has %d bytes, but its pagemap needs %d", info.Size(), want))
	}
	return []string{name}, nil
}
