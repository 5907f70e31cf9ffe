package nvrm

import (
	"errors"
	"fmt"
	"unsafe"
)

// Holdings is what a process has in the resource manager and what decides whether it
// comes back from a checkpoint. The zero value comes back.
type Holdings struct {
	// PeerAccess is the number of pairs of GPUs that access one another's memory
	// (NV50_P2P). By itself it comes back.
	PeerAccess int
	// Fabric is the number of allocations that have an address in the fabric that
	// links the GPUs (NV_MEMORY_FABRIC): libcuda gives one to each of 512 MiB or more.
	// A restore forgets it. Nothing misses it before one GPU is to be given access to
	// another one's memory: from then on that fails.
	Fabric int
	// FabricShared is how many times such an address has been given to another GPU.
	// With one of these a restore fails, and the process is lost.
	FabricShared int
	// Pools is the number of memory pools that another GPU accesses. A restore forgets
	// that without a word, and the other GPU's next access ends in an error.
	Pools int
	// HostNUMA is the number of allocations of virtual memory management in host NUMA
	// memory. With one of these a restore fails, and the process is lost.
	HostNUMA int
}

// Classes of objects, and the commands that ask about them.
const (
	classSystemMemory = 0x3e   // NV01_MEMORY_SYSTEM
	classGPUMemory    = 0x40   // NV01_MEMORY_LOCAL_USER
	classP2P          = 0x503b // NV50_P2P
	classFabric       = 0xf8   // NV_MEMORY_FABRIC

	getHandleInfo  = 0xd02    // NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO
	areDuplicates  = 0xd07    // NV0000_CTRL_CMD_CLIENT_OBJECTS_ARE_DUPLICATES
	getSurfaceInfo = 0x410110 // NV0041_CTRL_CMD_GET_SURFACE_INFO
	getFabricInfo  = 0xf80101 // NV00F8_CTRL_CMD_GET_INFO

	handleParent = 1 // NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_PARENT
	handleClass  = 2 // NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_CLASSID
	flexible     = 1 // NV00F8_ALLOC_FLAGS_FLEXIBLE_FLA
)

// Where handles lie. The module counts clients up from the first one; libcuda counts
// its objects up and leaves gaps.
const (
	firstClient = 0xc1d00000
	mostClients = 0x100000
	firstObject = 0x5c000000
	mostObjects = 0x1000000
	widestGap   = 0x10000
)

const (
	statusOK            = 0
	statusInvalidClient = 0x23
)

// classOf is the class of an object, 0 if there is none.
func classOf(a asker, client, object uint32) (class, status uint32, err error) {
	return handleInfo(a, client, object, handleClass)
}

func handleInfo(a asker, client, object, index uint32) (answer, status uint32, err error) {
	var p struct {
		object, index uint32
		result        uint64
	}
	p.object, p.index = object, index
	status, err = a.control(client, client, getHandleInfo, unsafe.Pointer(&p), unsafe.Sizeof(p))
	if err != nil || status != statusOK {
		return 0, status, err
	}
	return uint32(p.result), status, nil
}

// findClient finds the client that was made through an open file. Without one nothing
// is known about whoever has the file.
func findClient(a asker) (uint32, error) {
	for client := uint32(firstClient); client < firstClient+mostClients; client++ {
		_, status, err := classOf(a, client, client)
		switch {
		case err != nil:
			return 0, err
		case status == statusOK:
			return client, nil
		case status != statusInvalidClient:
			return 0, fmt.Errorf("client %#x: status %#x", client, status)
		}
	}
	return 0, errors.New("no client of an open nvidiactl was found")
}

// object is one that may have duplicates.
type object struct {
	handle uint32
	size   uint64
}

// contents are the objects of a client that matter.
type contents struct {
	p2p           int
	fabric        []FabricObject
	pools         int // flexible fabric memory, which is a pool's
	system        []object
	systemDoubled int
	fabricDoubled int
}

// add adds what a client has.
func (h *Holdings) add(c contents) {
	h.PeerAccess += c.p2p
	h.Fabric += len(c.fabric) - c.fabricDoubled
	h.FabricShared += c.fabricDoubled
	h.Pools += c.pools
	h.HostNUMA += c.systemDoubled
}

// scan goes through a client.
func scan(a asker, client uint32) (c contents, err error) {
	gap := 0
	before := uint32(0) // the class of the handle before
	for handle := uint32(firstObject + 1); handle < firstObject+mostObjects && gap < widestGap; handle++ {
		class, _, err := classOf(a, client, handle)
		if err != nil {
			return c, err
		}
		gap++
		if class != 0 {
			gap = 0
		}
		switch class {
		case classP2P:
			c.p2p++
		case classSystemMemory:
			size, err := systemSize(a, client, handle)
			if err != nil {
				return c, err
			}
			c.system = append(c.system, object{handle, size})
		case classFabric:
			o, err := fabricObject(a, client, handle)
			switch {
			case err != nil:
				return c, err
			case o.Flags&flexible != 0:
				c.pools++
			default:
				// libcuda makes it at once after the memory.
				if before == classGPUMemory {
					o.Memory = handle - 1
				}
				c.fabric = append(c.fabric, o)
			}
		}
		before = class
	}
	var fabric []object
	for _, o := range c.fabric {
		fabric = append(fabric, object{o.Handle, o.Size})
	}
	sources, err := duplicates(a, client, fabric)
	if err != nil {
		return c, err
	}
	for i := range c.fabric {
		o := &c.fabric[i]
		if o.Source = sources[o.Handle]; o.Source != 0 {
			o.Memory = 0
			c.fabricDoubled++
		}
	}
	doubled, err := duplicates(a, client, c.system)
	c.systemDoubled = len(doubled)
	return c, err
}

func fabricObject(a asker, client, handle uint32) (FabricObject, error) {
	o := FabricObject{Handle: handle}
	var p struct {
		size, page uint64
		flags      uint32
		attributes [2]uint32
	}
	status, err := a.control(client, handle, getFabricInfo, unsafe.Pointer(&p), unsafe.Sizeof(p))
	if err == nil && status == statusOK {
		o.Size, o.PageSize, o.Flags = p.size, p.page, p.flags
		o.Parent, status, err = handleInfo(a, client, handle, handleParent)
	}
	if err == nil && status != statusOK {
		err = fmt.Errorf("fabric memory %#x: status %#x", handle, status)
	}
	return o, err
}

// systemSize is the size of system memory. What does not tell it has the size 0.
func systemSize(a asker, client, handle uint32) (uint64, error) {
	type pair struct{ index, value uint32 }
	list := &[2]pair{{index: 2}, {index: 3}} // the lower and the upper half
	var p struct {
		count uint32
		list  unsafe.Pointer
	}
	p.count, p.list = uint32(len(list)), unsafe.Pointer(list)
	status, err := a.control(client, handle, getSurfaceInfo, unsafe.Pointer(&p), unsafe.Sizeof(p))
	if err != nil || status != statusOK {
		return 0, err
	}
	return uint64(list[1].value)<<32 | uint64(list[0].value), nil
}

// duplicates finds the objects that are duplicates of one before them, and of which.
func duplicates(a asker, client uint32, objects []object) (map[uint32]uint32, error) {
	of := make(map[uint32]uint32)
	for i, one := range objects {
		// The nearest first: a duplicate is often made at once.
		for j := i - 1; j >= 0; j-- {
			other := objects[j]
			if other.size != one.size || of[other.handle] != 0 {
				continue
			}
			var p struct {
				first, second uint32
				yes           uint8
				_             [3]uint8
			}
			p.first, p.second = one.handle, other.handle
			status, err := a.control(client, client, areDuplicates, unsafe.Pointer(&p), unsafe.Sizeof(p))
			if err == nil && status != statusOK {
				err = fmt.Errorf("objects %#x and %#x: status %#x", one.handle, other.handle, status)
			}
			if err != nil {
				return nil, err
			}
			if p.yes != 0 {
				of[one.handle] = other.handle
				break
			}
		}
	}
	return of, nil
}
