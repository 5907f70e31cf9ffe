package nvrm

import (
	"fmt"
	"slices"
	"unsafe"

	"cucriu/internal/kit/drivers"
)

// Holdings is what a process holds in the resource manager that decides whether it survives
// a checkpoint and restore. With the zero value it does.
type Holdings struct {
	// PeerAccess is the number of pairs of GPUs that access one another's memory
	// (NV50_P2P). Peer access alone is restored.
	PeerAccess int
	// Fabric is the number of allocations with an address in the fabric that links the GPUs
	// (NV_MEMORY_FABRIC). libcuda gives such an address to every allocation of 512 MiB or
	// more. A restore loses it. This goes unnoticed until one GPU is to be given access to
	// another one's memory, which then fails.
	Fabric int
	// FabricShared is how many times such an address has been given to another GPU. If it
	// is not 0, a restore fails, and the process is lost.
	FabricShared int
	// Pools is the number of memory pools that another GPU accesses. A restore silently
	// loses that access, and the other GPU's next access fails.
	Pools int
	// HostNUMA is the number of virtual memory management allocations in host NUMA memory,
	// if the process has a context on one GPU only. If it is not 0, a restore fails, and
	// the process is lost. With contexts on two GPUs it is 4 or 5 although there are no
	// such allocations.
	HostNUMA int
	// MemoryBytes is the size of all GPU memory that was found.
	MemoryBytes uint64
}

// WidestGap and ShortGap are how many handles a search tries after the last object that it
// has found. One question takes 2 to 4 µs. What the short one can miss is HostNUMA alone: GPU
// memory that is missing shows in the sum, and then the widest one follows.
const (
	WidestGap = 0x10000
	ShortGap  = 0x800
)

// overlap is how many handles are searched again before the last object that was seen: while
// the process ran, it may have made objects where the search had just been.
const overlap = 0x200

// handleInfo returns what the module says of an object, or 0 if there is no such object.
func handleInfo(a asker, client, object, index uint32) (info, status uint32, err error) {
	p := struct {
		object, index uint32
		result        uint64
	}{object: object, index: index}
	status, err = query(a, client, client, drivers.GetHandleInfo, &p)
	if err != nil || status != drivers.StatusOK {
		return 0, status, err
	}
	return uint32(p.result), status, nil
}

// findClient finds the client between two numbers that was made through an open file; 0 if
// there is none.
func findClient(a asker, from, to uint32) (uint32, error) {
	for client := from; client < to; client++ {
		_, status, err := handleInfo(a, client, client, drivers.HandleClass)
		switch {
		case err != nil:
			return 0, err
		case status == drivers.StatusOK:
			return client, nil
		case status != drivers.StatusInvalidClient:
			return 0, fmt.Errorf("client %#x: status %#x", client, status)
		}
	}
	return 0, nil
}

// object is a memory object that may have duplicates.
type object struct {
	handle uint32
	size   uint64
}

// seen is which objects of a client are relevant, and the last object of all.
type seen struct {
	handles []uint32
	last    uint32
}

// contents is what is relevant of a client.
type contents struct {
	seen
	Holdings
	fabric, system []object
	imports        int // of fabric memory, and multicast objects, which several processes have
	regions        map[region]bool
	unplaced       bool  // there is memory whose address the module does not tell
	gpus           []gpu // that the client can ask about
}

// region is a piece of memory, the same for all who have it.
type region struct {
	gpu, aperture uint32
	address, size uint64
}

// gpu is a subdevice of a client, through which questions about a GPU are asked.
type gpu struct {
	client
	id, subdevice, device uint32
}

// add adds what another client of the process holds.
func (h *Holdings) add(more Holdings) {
	h.MemoryBytes += more.MemoryBytes
	h.PeerAccess += more.PeerAccess
	h.Fabric += more.Fabric
	h.FabricShared += more.FabricShared
	h.Pools += more.Pools
	h.HostNUMA += more.HostNUMA
}

// scan looks at the objects of a client: at those that were seen before, and at all after them.
func (c *contents) scan(a asker, of uint32, before seen, widestGap int) (err error) {
	c.regions = make(map[region]bool)
	c.last = max(drivers.FirstObject, before.last)
	next := max(drivers.FirstObject+1+overlap, before.last) - overlap
	for _, handle := range before.handles {
		if handle >= next {
			break
		}
		if err := c.look(a, of, handle); err != nil {
			return err
		}
	}
	for ; next < drivers.FirstObject+drivers.MostObjects && next <= c.last+uint32(widestGap); next++ {
		if c.last == drivers.FirstObject && next > drivers.FirstObject+overlap {
			break // libcuda keeps its first objects, the devices: this is another library's client (NVML's)
		}
		if err := c.look(a, of, next); err != nil {
			return err
		}
	}
	if c.FabricShared, err = duplicates(a, of, c.fabric); err != nil {
		return err
	}
	c.Fabric = len(c.fabric) - c.FabricShared
	c.HostNUMA, err = duplicates(a, of, c.system)
	return err
}

// look looks at one object, if it exists.
func (c *contents) look(a asker, of, handle uint32) error {
	class, _, err := handleInfo(a, of, handle, drivers.HandleClass)
	if err != nil || class == 0 {
		return err
	}
	c.last = max(c.last, handle)
	switch class {
	case drivers.ClassP2P:
		c.PeerAccess++
	case drivers.ClassSubdevice:
		var id uint32
		device, _, err := handleInfo(a, of, handle, drivers.HandleParent)
		if err == nil {
			err = mustQuery(a, of, handle, drivers.GetGPU, &id)
		}
		if err != nil {
			return err
		}
		c.gpus = append(c.gpus, gpu{client{a, of}, id, handle, device})
	case drivers.ClassGPUMemory, drivers.ClassSystemMemory:
		size, err := surfaceSize(a, of, handle)
		if err == nil {
			err = c.place(a, of, handle, size)
		}
		if err != nil {
			return err
		}
		if class == drivers.ClassGPUMemory {
			c.MemoryBytes += size
		} else {
			c.system = append(c.system, object{handle, size})
		}
	case drivers.ClassImported, drivers.ClassImportedRef, drivers.ClassMulticast:
		c.imports++
	case drivers.ClassFabric:
		size, flags, err := fabricInfo(a, of, handle)
		switch {
		case err != nil:
			return err
		case flags&drivers.Flexible != 0:
			c.Pools++ // flexible memory belongs to a pool
		default:
			c.fabric = append(c.fabric, object{handle, size})
		}
	default:
		return nil
	}
	c.handles = append(c.handles, handle)
	return nil
}

// place notes where a piece of memory is. Modules before 580 tell it only to the kernel.
func (c *contents) place(a asker, of, handle uint32, size uint64) error {
	parent, _, err := handleInfo(a, of, handle, drivers.HandleParent)
	if err != nil {
		return err
	}
	var p struct { // the address, as the answer
		offset                                  uint64
		format, comprOffset, comprFormat        uint32
		aperture, cacheAttr, peerCacheAttr, mmu uint32
		contiguous                              uint64
	}
	status, err := query(a, of, handle, drivers.GetAddress, &p)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(c.gpus, func(g gpu) bool { return g.device == parent })
	if status != drivers.StatusOK || size == 0 || at < 0 {
		c.unplaced = c.unplaced || size > 0
		return nil
	}
	c.regions[region{c.gpus[at].id, p.aperture, p.offset, size}] = true
	return nil
}

func fabricInfo(a asker, client, handle uint32) (size uint64, flags uint32, err error) {
	var p struct {
		size, page uint64
		flags      uint32
		attributes [2]uint32
	}
	status, err := query(a, client, handle, drivers.GetFabricInfo, &p)
	if err == nil && status != drivers.StatusOK {
		err = fmt.Errorf("fabric memory %#x: status %#x", handle, status)
	}
	return p.size, p.flags, err
}

// surfaceSize returns the size of a memory object, or 0 if the module does not report it.
func surfaceSize(a asker, client, handle uint32) (uint64, error) {
	type pair struct{ index, value uint32 }
	pages := &pair{index: drivers.SurfacePages}
	p := struct {
		count uint32
		list  unsafe.Pointer
	}{1, unsafe.Pointer(pages)}
	status, err := query(a, client, handle, drivers.GetSurfaceInfo, &p)
	if err != nil || status != drivers.StatusOK {
		return 0, err
	}
	return uint64(pages.value) << 12, nil
}

// duplicates counts the objects that duplicate an earlier one.
func duplicates(a asker, client uint32, objects []object) (int, error) {
	isDuplicate := make(map[uint32]bool)
	for i, one := range objects {
		// Compare with the nearest first: a duplicate is often made right after its
		// original.
		for j := i - 1; j >= 0; j-- {
			other := objects[j]
			if other.size != one.size || isDuplicate[other.handle] {
				continue
			}
			p := struct {
				first, second uint32
				yes           uint8
				_             [3]uint8
			}{first: one.handle, second: other.handle}
			status, err := query(a, client, client, drivers.AreDuplicates, &p)
			if err == nil && status != drivers.StatusOK {
				err = fmt.Errorf("objects %#x and %#x: status %#x", one.handle, other.handle, status)
			}
			if err != nil {
				return 0, err
			}
			if p.yes != 0 {
				isDuplicate[one.handle] = true
				break
			}
		}
	}
	return len(isDuplicate), nil
}
