package nvrm

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/drivers"
	"cucriu/internal/kit/proc"
)

// ErrUnknown says that the kernel module cannot be asked, or does not answer as expected.
// Nothing is then known about the process.
var ErrUnknown = errors.New("the NVIDIA kernel module gave no usable answer")

// controlArguments is NVOS54_PARAMETERS.
type controlArguments struct {
	client, object  uint32
	command, flags  uint32
	parameters      unsafe.Pointer
	size, theStatus uint32
}

// Ioctl is ioctl(2). A simulated driver brings its own.
type Ioctl func(fd int, request uintptr, argument unsafe.Pointer) unix.Errno

// asker asks one question and returns the NV_STATUS of the resource manager.
type asker interface {
	control(client, object, command uint32, parameters unsafe.Pointer, size uintptr) (status uint32, err error)
}

// query asks with parameters that the answer overwrites.
func query[T any](a asker, client, object, command uint32, parameters *T) (status uint32, err error) {
	return a.control(client, object, command, unsafe.Pointer(parameters), unsafe.Sizeof(*parameters))
}

// mustQuery asks a question that must be answered.
func mustQuery[T any](a asker, client, object, command uint32, parameters *T) error {
	status, err := query(a, client, object, command, parameters)
	if err == nil && status != drivers.StatusOK {
		err = fmt.Errorf("%w: command %#x: status %#x", ErrUnknown, command, status)
	}
	return err
}

// controlFile is an open /dev/nvidiactl.
type controlFile struct {
	fd    int
	ioctl Ioctl
}

func (f controlFile) control(client, object, command uint32, parameters unsafe.Pointer, size uintptr) (uint32, error) {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	pinner.Pin(parameters)
	arguments := &controlArguments{client: client, object: object, command: command, parameters: parameters, size: uint32(size)}
	if errno := f.ioctl(f.fd, drivers.RMControl, unsafe.Pointer(arguments)); errno != 0 {
		return 0, fmt.Errorf("ioctl NV_ESC_RM_CONTROL: %w", errno)
	}
	return arguments.theStatus, nil
}

// client is a client that was made through one of a process's files.
type client struct {
	asker
	handle uint32
}

// findClients finds the clients of a process, those first that are known from before.
func (p *process) findClients(ioctl Ioctl) {
	if p.err = p.borrow(ioctl); p.err != nil {
		p.err = fmt.Errorf("process %d: %w: %w", p.pid, ErrUnknown, p.err)
		return
	}
	handles, errs := make([]uint32, len(p.files)), make([]error, len(p.files))
	find := func(i int, from, to uint32) bool {
		if handles[i] == 0 && errs[i] == nil {
			handles[i], errs[i] = findClient(p.files[i], from, to)
		}
		return handles[i] != 0 || errs[i] != nil
	}
	isFound := false
	for i := range p.files {
		for handle := range p.known {
			isFound = find(i, handle, handle+1) || isFound
		}
	}
	// Not every file has a client: an exported handle is an open nvidiactl, too. So no file is
	// searched to the end before the others.
	for from := uint32(drivers.FirstClient); !isFound && from < drivers.FirstClient+drivers.MostClients; from += WidestGap {
		for i := 0; !isFound && i < len(p.files); i++ {
			isFound = find(i, from, from+WidestGap)
		}
	}
	// A process's other clients have numbers near that of its first. One that is missed shows
	// in the sum of the memory.
	if at := slices.IndexFunc(handles, func(handle uint32) bool { return handle != 0 }); at >= 0 {
		first := handles[at]
		for i := range p.files {
			find(i, max(drivers.FirstClient, first-0x100), first+0x400)
		}
	}
	if err := errors.Join(errs...); err != nil {
		p.err = fmt.Errorf("process %d: %w: %w", p.pid, ErrUnknown, err)
		return
	}
	for i, handle := range handles {
		isKnown := func(c client) bool { return c.handle == handle } // one file can be open under several numbers
		if handle != 0 && !slices.ContainsFunc(p.clients, isKnown) {
			p.clients = append(p.clients, client{p.files[i], handle})
		}
	}
	if len(p.clients) == 0 {
		p.err = fmt.Errorf("process %d: %w: no descriptor of /dev/nvidiactl has a client", p.pid, ErrUnknown)
	}
}

// borrow duplicates the process's descriptors of nvidiactl, the lowest first. They are listed here and now: a number that
// was read earlier may be another file's, which must not be asked.
func (p *process) borrow(ioctl Ioctl) error {
	process, err := proc.Open(p.pid)
	if err != nil {
		return err
	}
	defer process.Close()
	open, err := proc.Descriptors(p.pid)
	if err != nil {
		return err
	}
	for _, number := range slices.Sorted(maps.Keys(open)) {
		if filepath.Base(strings.TrimSuffix(open[number], " (deleted)")) != drivers.ControlNode {
			continue
		}
		fd, err := process.DuplicateDescriptor(number)
		if errors.Is(err, unix.EBADF) {
			continue // closed meanwhile
		}
		if err != nil {
			return fmt.Errorf("pidfd_getfd of %s: %w", open[number], err)
		}
		p.files = append(p.files, controlFile{fd, ioctl})
	}
	return nil
}
