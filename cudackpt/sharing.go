package cudackpt

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

// Ioctl returns the function by which NVIDIA's kernel module is asked: ioctl(2), unless the
// library brings its own, as a simulated driver does.
func (d *Driver) Ioctl() func(fd int, request uintptr, argument unsafe.Pointer) unix.Errno {
	simulated := symbol(d.lib.handle, "cudasim_ioctl")
	return func(fd int, request uintptr, argument unsafe.Pointer) unix.Errno {
		if simulated != 0 {
			r, _, _ := purego.SyscallN(simulated, uintptr(fd), request, uintptr(argument))
			return unix.Errno(r)
		}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument))
		return errno
	}
}

// IPCHandle is CUipcMemHandle: what one process gives another to share its device memory.
type IPCHandle [64]byte

// AllocateShared allocates device memory in this process, on the first GPU that it sees, and
// returns a handle of it. It is there to find out what can be told of processes that share
// memory, and must be called from a locked thread: the context is that of the thread.
func (d *Driver) AllocateShared() (IPCHandle, error) {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	context, memory, handle := new(uintptr), new(uintptr), new(IPCHandle)
	for _, p := range []any{context, memory, handle} {
		pinner.Pin(p)
	}
	err := d.call("cuInit", 0)
	if err == nil {
		err = d.call("cuDevicePrimaryCtxRetain", uintptr(unsafe.Pointer(context)), 0)
	}
	if err == nil {
		err = d.call("cuCtxSetCurrent", *context)
	}
	if err == nil {
		err = d.call("cuMemAlloc_v2", uintptr(unsafe.Pointer(memory)), 2<<20)
	}
	if err == nil {
		err = d.call("cuIpcGetMemHandle", uintptr(unsafe.Pointer(handle)), *memory)
	}
	return *handle, err
}

// Import maps the memory of another process. AllocateShared has been called in this one.
func (d *Driver) Import(handle IPCHandle) error {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	memory, copied := new(uintptr), &handle
	pinner.Pin(memory)
	pinner.Pin(copied)
	const lazyPeerAccess = 1
	arguments := []uintptr{uintptr(unsafe.Pointer(memory)), uintptr(unsafe.Pointer(copied)), lazyPeerAccess}
	if runtime.GOARCH == "amd64" {
		// A structure of this size that is passed by value lies on the stack, behind the six
		// arguments that go in registers.
		arguments = []uintptr{uintptr(unsafe.Pointer(memory)), lazyPeerAccess, 0, 0, 0, 0}
		for _, word := range (*[8]uintptr)(unsafe.Pointer(copied)) {
			arguments = append(arguments, word)
		}
	}
	return d.call("cuIpcOpenMemHandle_v2", arguments...)
}

func (d *Driver) call(name string, arguments ...uintptr) error {
	address := symbol(d.lib.handle, name)
	if address == 0 {
		return fmt.Errorf("%s does not export %s", d.lib.name, name)
	}
	r, _, _ := purego.SyscallN(address, arguments...)
	if code := result(r); code != ResultSuccess {
		return fmt.Errorf("%s: %w", name, code)
	}
	return nil
}
