package cudackpt

import (
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
