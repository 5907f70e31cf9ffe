package nvrm

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/drivers"
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
	at     uint64 // its address; 0 if the module does not tell it
}

const fakeGPU = 0x600 // its subdevice has the number 3, and its device 2

func (f *fake) control(client, handle, command uint32, parameters unsafe.Pointer, _ uintptr) (uint32, error) {
	const noObject, notSupported = 0x33, 0x56
	if f.status != 0 {
		return f.status, nil
	}
	if client != f.client {
		return drivers.StatusInvalidClient, nil
	}
	number := func(handle uint32) uint32 { return handle - drivers.FirstObject }
	switch command {
	case drivers.GetHandleInfo:
		p := (*struct {
			object, index uint32
			result        uint64
		})(parameters)
		if p.object == client {
			p.result = 0x41
			return drivers.StatusOK, nil
		}
		o, ok := f.objects[number(p.object)]
		if !ok {
			return noObject, nil
		}
		p.result = uint64(o.class)
		if p.index != drivers.HandleClass {
			p.result = drivers.FirstObject + uint64(o.parent)
		}
		return drivers.StatusOK, nil
	case drivers.GetGPU:
		*(*uint32)(parameters) = fakeGPU
		return drivers.StatusOK, nil
	case drivers.GetAddress:
		o := f.objects[number(handle)]
		if o.at == 0 {
			return notSupported, nil
		}
		*(*uint64)(parameters) = o.at
		return drivers.StatusOK, nil
	case drivers.GetSurfaceInfo:
		p := (*struct {
			count uint32
			list  *[2]uint32
		})(parameters)
		o := f.objects[number(handle)]
		if o.closed {
			return notSupported, nil
		}
		if p.list[0] != drivers.SurfacePages {
			return notSupported, nil
		}
		p.list[1] = uint32(o.size >> 12)
		return drivers.StatusOK, nil
	case drivers.GetFabricInfo:
		p := (*struct {
			size, page uint64
			flags      uint32
		})(parameters)
		o := f.objects[number(handle)]
		p.size, p.flags = o.size, o.flags
		return drivers.StatusOK, nil
	case drivers.AreDuplicates:
		p := (*struct {
			first, second uint32
			yes           uint8
		})(parameters)
		a, b := number(p.first), number(p.second)
		p.yes = 0
		if f.objects[a].dupOf == b || f.objects[b].dupOf == a {
			p.yes = 1
		}
		return drivers.StatusOK, nil
	}
	return notSupported, nil
}

// TestWhatProcessesHoldIsReadAsOnH200s checks the object trees that were seen on H200s.
func TestWhatProcessesHoldIsReadAsOnH200s(t *testing.T) {
	const mib = 1 << 20
	const vidmem, sysmem, p2p, fabric = 0x40, drivers.ClassSystemMemory, drivers.ClassP2P, drivers.ClassFabric
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
			map[uint32]fakeObject{0x146: {class: p2p}, 0x147: {class: fabric, size: 512 * mib, flags: drivers.Flexible}, 0x148: {class: fabric, size: 512 * mib, flags: drivers.Flexible}},
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
			f := &fake{client: drivers.FirstClient + 0x59b, objects: c.objects}
			client, err := findClient(f, drivers.FirstClient, drivers.FirstClient+drivers.MostClients)
			if err != nil || client != f.client {
				t.Fatalf("client %#x, %v", client, err)
			}
			var found contents
			if err = found.scan(f, client, seen{}, WidestGap); err != nil || found.Holdings != c.want {
				t.Errorf("%+v, %v; want %+v", found.Holdings, err, c.want)
			}
		})
	}
}

func TestUnknownStatusIsAnError(t *testing.T) {
	if client, err := findClient(&fake{status: 0x1f}, drivers.FirstClient, drivers.FirstClient+1); err == nil {
		t.Errorf("client %#x", client)
	}
}

func TestAProcessWithoutTheDeviceIsUnknown(t *testing.T) {
	if got := askAbout(os.Getpid()); !errors.Is(got.Err, ErrUnknown) || len(got.Holdings) > 0 {
		t.Errorf("%+v", got)
	}
}

// If the kernel module does not answer, the process may still hold something.
func TestADeviceThatDoesNotAnswerIsUnknown(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "nvidiactl"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if got := askAbout(os.Getpid()); !errors.Is(got.Err, ErrUnknown) || !errors.Is(got.Err, unix.ENOTTY) || len(got.Holdings) > 0 {
		t.Errorf("%+v", got)
	}
}

func askAbout(pid int) Answer {
	kernel := func(fd int, request uintptr, argument unsafe.Pointer) unix.Errno {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument))
		return errno
	}
	return Ask(kernel, []int{pid}, []int{WidestGap}, nil)
}

func TestMemoryIsKnownByItsPlace(t *testing.T) {
	const mib = 1 << 20
	f := &fake{client: drivers.FirstClient, objects: map[uint32]fakeObject{
		3: {class: drivers.ClassSubdevice, parent: 2}, 5: {class: drivers.ClassGPUMemory, parent: 2, size: mib, at: 64 * mib},
		6: {class: drivers.ClassGPUMemory, parent: 9, size: mib, at: 64 * mib}, 7: {class: drivers.ClassMulticast},
	}}
	var found contents
	err := found.scan(f, f.client, seen{}, ShortGap)
	if err != nil || found.imports != 1 || len(found.regions) != 1 || !found.regions[region{gpu: fakeGPU, address: 64 * mib, size: mib}] || !found.unplaced {
		t.Errorf("%+v, %v", found, err)
	}
}

// accounts is a resource manager that knows how much memory each process has.
type accounts map[uint32]pidInfo

func (a accounts) control(_, _, command uint32, parameters unsafe.Pointer, _ uintptr) (uint32, error) {
	switch command {
	case drivers.GetPIDs:
		p := (*struct {
			kind, class, count uint32
			pids               [drivers.PIDsRoom]uint32
		})(parameters)
		for pid := range a {
			p.pids[p.count] = pid
			p.count++
		}
	case drivers.GetPIDInfo:
		p := (*struct {
			count uint32
			infos [drivers.PIDInfosRoom]pidInfo
		})(parameters)
		for i := range p.infos[:p.count] {
			info := a[p.infos[i].pid]
			info.pid = p.infos[i].pid
			p.infos[i] = info
		}
	}
	return drivers.StatusOK, nil
}

func TestMemoryIsAccounted(t *testing.T) {
	a := accounts{1: {owned: 10, private: 1}, 2: {owned: 5, duplicated: 3}, 9: {owned: 7, duplicated: 2}, 8: {}}
	gpus := []gpu{{client: client{a, drivers.FirstClient}, id: 1}, {client: client{a, drivers.FirstClient}, id: 1}, {client: client{a, drivers.FirstClient}, id: 2}}
	one, two := &process{pid: 1, all: contents{gpus: gpus}}, &process{pid: 2}
	others, err := account([]*process{one, two})
	// Process 8 has nothing: it is one that asks.
	if err != nil || one.total != 22 || one.foreign != 0 || two.total != 16 || two.foreign != 6 || len(others) != 1 || others[0].pid != 9 || others[0].foreign != 4 {
		t.Errorf("%+v, %+v, others %+v, %v", one, two, others, err)
	}
}

// TestShares has the cases that were seen on H200s.
func TestShares(t *testing.T) {
	has := func(pid int, foreign uint64, at ...uint64) *process {
		p := &process{pid: pid, foreign: foreign, all: contents{regions: make(map[region]bool)}}
		for _, address := range at {
			p.all.regions[region{gpu: 6, address: address, size: 64 << 20}] = true
		}
		return p
	}
	hidden, multicast, unread := has(1, 0), has(1, 0), has(9, 64)
	hidden.all.unplaced, multicast.all.imports, unread.err = true, 1, ErrUnknown
	type list []*process
	for _, c := range []struct {
		name            string
		processes, more list
		want            []Share
	}{
		{"nothing", list{has(1, 0, 10), has(2, 0, 20)}, list{has(9, 0, 30)}, nil},
		{"two of the tree", list{has(1, 0, 10), has(2, 64, 10)}, nil, []Share{{PID: 1, With: 2}}},
		{"three of the tree", list{has(1, 0, 10), has(2, 64, 10), has(3, 64, 10)}, nil, []Share{{PID: 1, With: 2}, {PID: 1, With: 3}, {PID: 2, With: 3}}},
		{"host memory, which is not counted", list{has(1, 0, 10), has(2, 0, 10)}, nil, []Share{{PID: 1, With: 2}}},
		{"an importer outside", list{has(1, 0, 10)}, list{has(9, 64, 10)}, []Share{{PID: 1, With: 9}}},
		{"an exporter outside", list{has(1, 64, 10)}, list{has(9, 0, 10)}, []Share{{PID: 1, With: 9}}},
		{"others share", list{has(1, 0, 10)}, list{has(8, 0, 20), has(9, 64, 20)}, nil},
		{"an exporter that cannot be told", list{has(1, 64, 10)}, nil, []Share{{PID: 1}}},
		{"multicast", list{multicast}, nil, []Share{{PID: 1}}},
		{"an importer outside whose memory cannot be placed", list{hidden}, list{has(9, 64, 10)}, []Share{{PID: 1, With: 9, Maybe: true}}},
		{"an importer outside that cannot be read", list{has(1, 0, 10)}, list{unread}, []Share{{PID: 1, With: 9, Maybe: true}}},
	} {
		if got := shares(c.processes, c.more); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// TestTheSecondLookIsShort has a process like one of PyTorch's, which has freed many objects.
func TestTheSecondLookIsShort(t *testing.T) {
	const mib = 1 << 20
	clients := make(map[uint64]*fake) // by the inode of the file
	open := func(number uint32, objects map[uint32]fakeObject) *fake {
		file, err := os.Create(filepath.Join(t.TempDir(), "nvidiactl"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		var stat unix.Stat_t
		if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
			t.Fatal(err)
		}
		clients[stat.Ino] = &fake{client: drivers.FirstClient + number, objects: objects}
		return clients[stat.Ino]
	}
	var asked atomic.Int64
	self := uint32(os.Getpid())
	account := accounts{}
	ioctl := func(fd int, _ uintptr, argument unsafe.Pointer) unix.Errno {
		asked.Add(1)
		var stat unix.Stat_t
		if err := unix.Fstat(fd, &stat); err != nil {
			return err.(unix.Errno)
		}
		a, of := (*controlArguments)(argument), asker(clients[stat.Ino])
		if a.command == drivers.GetPIDs || a.command == drivers.GetPIDInfo {
			of = account
		}
		status, err := of.control(a.client, a.object, a.command, a.parameters, uintptr(a.size))
		a.theStatus = status
		if err != nil {
			return unix.EIO
		}
		return 0
	}
	var known Known
	look := func(gap int, want Holdings) int {
		t.Helper()
		asked.Store(0)
		account[self] = pidInfo{owned: want.MemoryBytes}
		got := Ask(ioctl, []int{int(self)}, []int{gap}, known)
		known = got.Known
		if got.Err != nil || got.Holdings[int(self)] == nil || *got.Holdings[int(self)] != want {
			t.Errorf("%+v, %v; want %+v", got.Holdings[int(self)], got.Err, want)
		}
		return int(asked.Load())
	}
	const few = 8_000
	objects := map[uint32]fakeObject{3: {class: drivers.ClassSubdevice, parent: 2}, 299_990: {class: drivers.ClassGPUMemory, size: mib}, 300_000: {class: drivers.ClassGPUMemory, size: 2 * mib}}
	for n := uint32(5000); n <= 250_000; n += 5000 {
		objects[n] = fakeObject{class: 0x80}
	}
	open(drivers.MostClients, nil) // has no client
	open(5000, objects)
	open(5050, map[uint32]fakeObject{}) // another library's

	all := look(WidestGap, Holdings{MemoryBytes: 3 * mib})
	if all > 700_000 {
		t.Errorf("%d questions: a file without a client was searched to the end", all)
	}
	known = nil
	if n := look(ShortGap, Holdings{MemoryBytes: 3 * mib}); n > all+100_000 {
		t.Errorf("%d questions, and %d at once: a search that was too short did not go on where it ended", n, all)
	}
	if n := look(ShortGap, Holdings{MemoryBytes: 3 * mib}); n > few {
		t.Errorf("%d questions where nothing has changed", n)
	}
	delete(objects, 299_990)
	objects[300_500], objects[302_000] = fakeObject{class: drivers.ClassP2P}, fakeObject{class: drivers.ClassGPUMemory, size: 4 * mib}
	if n := look(ShortGap, Holdings{MemoryBytes: 6 * mib, PeerAccess: 1}); n > few {
		t.Errorf("%d questions where the last objects are new", n)
	}
	open(5100, map[uint32]fakeObject{4: {class: drivers.ClassGPUMemory, size: mib}})
	if n := look(ShortGap, Holdings{MemoryBytes: 7 * mib, PeerAccess: 1}); n > 2*few {
		t.Errorf("%d questions where a client is new", n)
	}
	objects[150] = fakeObject{class: drivers.ClassGPUMemory, size: 8 * mib}
	look(ShortGap, Holdings{MemoryBytes: 15 * mib, PeerAccess: 1}) // the short look misses it
	if n := look(ShortGap, Holdings{MemoryBytes: 15 * mib, PeerAccess: 1}); n > 2*few {
		t.Errorf("%d questions after a search from the beginning", n)
	}
}
