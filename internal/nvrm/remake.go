package nvrm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A restore makes all objects of a process again, under their old handles and in a
// new client; but it forgets fabric memory. Then it repeats the mappings of what it
// forgot, and the first of them fails the restore. A Remaker makes what is forgotten,
// at the last moment at which that helps: the driver is about to map it.

// FabricObject is what must be known of fabric memory to make it again.
type FabricObject struct {
	Handle   uint32
	Parent   uint32 // the subdevice whose it is
	Memory   uint32 // the memory that it is the address of; 0 for a duplicate
	Source   uint32 // what it is a duplicate of, for another GPU; 0 if it is none
	Size     uint64
	PageSize uint64
	Flags    uint32
}

// Mapping is what the driver asks nvidia-uvm for when it maps memory of the resource
// manager for a GPU.
type Mapping struct {
	ControlFD int    // the process's own number of its nvidiactl
	Client    uint32 // in which Memory is
	Memory    uint32
}

// The ioctl of /dev/nvidia-uvm, UVM_MAP_EXTERNAL_ALLOCATION, and where in its argument
// ParseMapping's bytes lie.
const (
	MapExternal   = 33
	MappingOffset = 9248
	MappingSize   = 12
)

// ParseMapping reads the end of UVM_MAP_EXTERNAL_ALLOCATION_PARAMS.
func ParseMapping(data [MappingSize]byte) Mapping {
	return Mapping{
		ControlFD: int(int32(binary.LittleEndian.Uint32(data[0:]))),
		Client:    binary.LittleEndian.Uint32(data[4:]),
		Memory:    binary.LittleEndian.Uint32(data[8:]),
	}
}

// maker makes objects in a client, and returns the resource manager's NV_STATUS.
type maker interface {
	asker
	allocate(client uint32, o FabricObject) (status uint32, err error)
	duplicate(client uint32, o FabricObject) (status uint32, err error)
}

// Remaker makes the fabric memory of one process again while that is restored. Its
// restore thread must stand at the entry of each MapExternal when BeforeMapping is
// called.
type Remaker struct {
	pid     int
	objects map[uint32]FabricObject
	order   []uint32
	made    map[uint32]bool
	last    Mapping // through which the rest is made
	open    func(pid, number int) (maker, func(), error)
}

// NewRemaker takes what Fabric said of the process before its checkpoint.
func NewRemaker(pid int, objects []FabricObject) *Remaker {
	r := &Remaker{pid: pid, objects: make(map[uint32]FabricObject), made: make(map[uint32]bool), open: openControl}
	for _, o := range objects {
		r.objects[o.Handle] = o
		r.order = append(r.order, o.Handle)
	}
	return r
}

// BeforeMapping makes what a mapping needs, if it is forgotten fabric memory.
func (r *Remaker) BeforeMapping(m Mapping) error {
	r.last = m
	if _, ours := r.objects[m.Memory]; !ours || r.made[m.Memory] {
		return nil
	}
	return r.through(m, func(to maker) error { return r.make(to, m.Client, m.Memory) })
}

// Finish makes what no mapping has asked for. It is called after the restore, and
// before the unlock.
func (r *Remaker) Finish() error {
	if len(r.made) == len(r.objects) {
		return nil
	}
	if r.last.Client == 0 {
		return fmt.Errorf("process %d: the restore mapped nothing, so that its client in the resource manager is not known", r.pid)
	}
	return r.through(r.last, func(to maker) error {
		var errs []error
		for _, handle := range r.order {
			errs = append(errs, r.make(to, r.last.Client, handle))
		}
		return errors.Join(errs...)
	})
}

func (r *Remaker) through(m Mapping, do func(maker) error) error {
	to, done, err := r.open(r.pid, m.ControlFD)
	if err != nil {
		return fmt.Errorf("process %d: its descriptor %d of nvidiactl: %w", r.pid, m.ControlFD, err)
	}
	defer done()
	return do(to)
}

// make makes one object, and what it is a duplicate of first.
func (r *Remaker) make(to maker, client, handle uint32) error {
	o, known := r.objects[handle]
	if !known || r.made[handle] {
		return nil
	}
	class, _, err := classOf(to, client, handle)
	if err != nil {
		return err
	}
	if class != 0 { // a driver that does not forget
		r.made[handle] = true
		return nil
	}
	var status uint32
	if o.Source != 0 {
		if err := r.make(to, client, o.Source); err != nil {
			return err
		}
		status, err = to.duplicate(client, o)
	} else {
		status, err = to.allocate(client, o)
	}
	if err == nil && status != statusOK {
		err = fmt.Errorf("status %#x", status)
	}
	if err != nil {
		return fmt.Errorf("process %d: fabric memory %#x of client %#x: %w", r.pid, handle, client, err)
	}
	r.made[handle] = true
	return nil
}

func openControl(pid, number int) (maker, func(), error) {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(process)
	fd, err := unix.PidfdGetfd(process, number, 0)
	if err != nil {
		return nil, nil, err
	}
	return controlFile(fd), func() { _ = unix.Close(fd) }, nil
}

const (
	rmAlloc = 0xc030462b // NV_ESC_RM_ALLOC, _IOWR('F', 0x2b, NVOS64_PARAMETERS)
	rmDup   = 0xc01c4634 // NV_ESC_RM_DUP_OBJECT, _IOWR('F', 0x34, NVOS55_PARAMETERS)
)

func (f controlFile) allocate(client uint32, o FabricObject) (uint32, error) {
	// NV00F8_ALLOCATION_PARAMETERS
	parameters := &struct {
		alignment, size, pageSize uint64
		flags                     uint32
		offset                    uint64
		memory, mapFlags          uint32
	}{alignment: o.PageSize, size: o.Size, pageSize: o.PageSize, flags: o.Flags, memory: o.Memory}
	var pinner runtime.Pinner
	defer pinner.Unpin()
	pinner.Pin(parameters)
	arguments := &struct {
		root, parent, object, class uint32
		parameters                  unsafe.Pointer
		rights                      uint64
		size, flags, status, _      uint32
	}{root: client, parent: o.Parent, object: o.Handle, class: classFabric, parameters: unsafe.Pointer(parameters)}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(f), rmAlloc, uintptr(unsafe.Pointer(arguments))); errno != 0 {
		return 0, fmt.Errorf("ioctl NV_ESC_RM_ALLOC: %w", errno)
	}
	return arguments.status, nil
}

func (f controlFile) duplicate(client uint32, o FabricObject) (uint32, error) {
	arguments := &struct {
		client, parent, object, sourceClient, source, flags, status uint32
	}{client: client, parent: o.Parent, object: o.Handle, sourceClient: client, source: o.Source}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(f), rmDup, uintptr(unsafe.Pointer(arguments))); errno != 0 {
		return 0, fmt.Errorf("ioctl NV_ESC_RM_DUP_OBJECT: %w", errno)
	}
	return arguments.status, nil
}
