package nvrm

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fake is a resource manager with one client that has these objects.
type fake struct {
	client  uint32
	objects map[uint32]fakeObject // by number
	status  uint32                // the answer to every question, if not 0
}

type fakeObject struct {
	class  uint32
	parent uint32
	size   uint64
	flags  uint32
	dupOf  uint32 // the number of the object that it duplicates
	closed bool   // does not report its size
}

func (f *fake) control(client, handle, command uint32, parameters unsafe.Pointer, _ uintptr) (uint32, error) {
	const noObject, notSupported = 0x33, 0x56
	if f.status != 0 {
		return f.status, nil
	}
	if client != f.client {
		return statusInvalidClient, nil
	}
	number := func(handle uint32) uint32 { return handle - firstObject }
	switch command {
	case getHandleInfo:
		p := (*struct {
			object, index uint32
			result        uint64
		})(parameters)
		if p.object == client {
			p.result = 0x41
			return statusOK, nil
		}
		o, ok := f.objects[number(p.object)]
		if !ok {
			return noObject, nil
		}
		p.result = uint64(o.class)
		if p.index != handleClass {
			p.result = uint64(o.parent)
		}
		return statusOK, nil
	case getSurfaceInfo:
		p := (*struct {
			count uint32
			list  *[2][2]uint32
		})(parameters)
		o := f.objects[number(handle)]
		if o.closed {
			return notSupported, nil
		}
		p.list[0][1], p.list[1][1] = uint32(o.size), uint32(o.size>>32)
		return statusOK, nil
	case getFabricInfo:
		p := (*struct {
			size, page uint64
			flags      uint32
		})(parameters)
		o := f.objects[number(handle)]
		p.size, p.flags = o.size, o.flags
		return statusOK, nil
	case areDuplicates:
		p := (*struct {
			first, second uint32
			yes           uint8
		})(parameters)
		a, b := number(p.first), number(p.second)
		p.yes = 0
		if f.objects[a].dupOf == b || f.objects[b].dupOf == a {
			p.yes = 1
		}
		return statusOK, nil
	}
	return notSupported, nil
}

// TestWhatProcessesHoldIsReadAsOnH200s checks the object trees that were seen on H200s.
func TestWhatProcessesHoldIsReadAsOnH200s(t *testing.T) {
	const mib = 1 << 20
	const vidmem, sysmem, p2p, fabric = 0x40, classSystemMemory, classP2P, classFabric
	for _, c := range []struct {
		name    string
		objects map[uint32]fakeObject
		want    Holdings
	}{
		{"two contexts, small", map[uint32]fakeObject{0x2: {class: 0x80}, 0xa6: {class: vidmem, size: 8 * mib}, 0x145: {class: vidmem, size: 8 * mib}}, Holdings{MemoryBytes: 16 * mib}},
		{
			"two contexts, large",
			map[uint32]fakeObject{0xa6: {class: vidmem, size: 1024 * mib}, 0xa7: {class: fabric, size: 1024 * mib}, 0x145: {class: vidmem, size: 1024 * mib}, 0x146: {class: fabric, size: 1024 * mib}},
			Holdings{Fabric: 2, MemoryBytes: 2048 * mib},
		},
		{"peer access, small", map[uint32]fakeObject{0x142: {class: p2p}}, Holdings{PeerAccess: 1}},
		{
			"peer access, large",
			map[uint32]fakeObject{
				0xa7: {class: fabric, size: 512 * mib}, 0x146: {class: fabric, size: 512 * mib}, 0x148: {class: p2p},
				0x149: {class: fabric, size: 512 * mib, dupOf: 0xa7}, 0x14d: {class: fabric, size: 512 * mib, dupOf: 0x146},
			},
			Holdings{PeerAccess: 1, Fabric: 2, FabricShared: 2},
		},
		{
			"three duplicates of one, as three GPUs make",
			map[uint32]fakeObject{
				0xa6: {class: vidmem, size: 512 * mib}, 0xa7: {class: fabric, size: 512 * mib},
				0x149: {class: fabric, size: 512 * mib, dupOf: 0xa7}, 0x14b: {class: fabric, size: 512 * mib, dupOf: 0xa7}, 0x14d: {class: fabric, size: 512 * mib, dupOf: 0xa7},
			},
			Holdings{Fabric: 1, FabricShared: 3, MemoryBytes: 512 * mib},
		},
		{
			"pool with peer access",
			map[uint32]fakeObject{0x146: {class: p2p}, 0x147: {class: fabric, size: 512 * mib, flags: flexible}, 0x148: {class: fabric, size: 512 * mib, flags: flexible}},
			Holdings{PeerAccess: 1, Pools: 2},
		},
		{
			"host NUMA memory beside the driver's own",
			map[uint32]fakeObject{
				0x25: {class: sysmem, size: 56 * mib}, 0x74: {class: sysmem, size: 8 * mib}, 0x76: {class: sysmem, closed: true},
				0xa4: {class: sysmem, size: 8 * mib}, 0xa5: {class: sysmem, size: 8 * mib, dupOf: 0xa4},
			},
			Holdings{HostNUMA: 1},
		},
		{"a wide gap", map[uint32]fakeObject{0x2: {class: 0x80}, 0xf000: {class: p2p}}, Holdings{PeerAccess: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fake{client: firstClient + 0x59b, objects: c.objects}
			client, err := findClient(f)
			if err != nil || client != f.client {
				t.Fatalf("client %#x, %v", client, err)
			}
			found, err := scan(f, client, WidestGap)
			var got Holdings
			if got.add(found); err != nil || got != c.want {
				t.Errorf("%+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

func TestUnknownStatusIsAnError(t *testing.T) {
	if client, err := findClient(&fake{status: 0x1f}); err == nil {
		t.Errorf("client %#x", client)
	}
}

func TestAProcessWithoutTheDeviceIsUnknown(t *testing.T) {
	if got, err := Read(os.Getpid(), WidestGap); !errors.Is(err, ErrUnknown) {
		t.Errorf("%+v, %v", got, err)
	}
}

// If the kernel module does not answer, the process may still hold something.
func TestADeviceThatDoesNotAnswerIsUnknown(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "nvidiactl"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := Read(os.Getpid(), WidestGap); !errors.Is(err, ErrUnknown) || !errors.Is(err, unix.ENOTTY) {
		t.Errorf("%v", err)
	}
}
