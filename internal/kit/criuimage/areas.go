package criuimage

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/mm"
	"golang.org/x/sys/unix"

	"cucriu/internal/kit/pagemap"
	"cucriu/internal/kit/proc"
)

// Areas is what of the memory of a process criu restores in another way if the images have a
// parent.
type Areas struct {
	// Own are areas for whose pages criu does not look at the parent: huge pages, and what a
	// plugin maps. They are in order.
	Own []pagemap.Range
	// LargestReadOnly is the size of the largest private area that nobody may write, such as the
	// address space that CUDA reserves. With a parent, criu maps it writable first, and the kernel
	// takes it for memory that is needed, without one it does not.
	LargestReadOnly uint64
}

func addressSpaceName(pid int) string { return fmt.Sprintf("mm-%d.img", pid) }

func readAddressSpace(dir string, pid int) (*mm.MmEntry, error) {
	return readEntry[*mm.MmEntry](dir, addressSpaceName(pid), "MM")
}

// LayoutOf returns where the memory of a process of an image begins, which is where it begins again when it is restored.
func LayoutOf(dir string, pid int) (proc.Layout, error) {
	memory, err := readAddressSpace(dir, pid)
	return proc.Layout{Code: memory.GetMmStartCode(), Stack: memory.GetMmStartStack()}, err
}

// ReadAreas reads the areas of a process.
func ReadAreas(dir string, pid int) (Areas, error) {
	memory, err := readAddressSpace(dir, pid)
	if err != nil {
		return Areas{}, err
	}
	const regular, filePrivate, anonPrivate, plugin = 1 << 0, 1 << 6, 1 << 9, 1 << 27 // VMA_… of criu's image.h
	var areas Areas
	for _, a := range memory.GetVmas() {
		isPrivate := a.GetStatus()&regular != 0 && a.GetStatus()&(filePrivate|anonPrivate) != 0
		switch {
		case a.GetStart() >= a.GetEnd():
			return Areas{}, damaged(dir, addressSpaceName(pid), fmt.Errorf("invalid memory area: it begins at %#x and ends at %#x", a.GetStart(), a.GetEnd()))
		case a.GetFlags()&unix.MAP_HUGETLB != 0 || a.GetStatus()&plugin != 0:
			areas.Own = append(areas.Own, pagemap.Range{Start: a.GetStart(), End: a.GetEnd()})
		case isPrivate && a.GetProt()&unix.PROT_WRITE == 0 && a.GetFlags()&unix.MAP_NORESERVE == 0:
			areas.LargestReadOnly = max(areas.LargestReadOnly, a.GetEnd()-a.GetStart())
		}
	}
	slices.SortFunc(areas.Own, func(a, b pagemap.Range) int { return cmp.Compare(a.Start, b.Start) })
	return areas, nil
}
