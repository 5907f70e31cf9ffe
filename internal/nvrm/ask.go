package nvrm

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrUnknown says that the kernel module cannot be asked, or does not answer as expected.
// Nothing is then known about the process.
var ErrUnknown = errors.New("NVIDIA's resource manager does not say")

// rmControl is NV_ESC_RM_CONTROL, _IOWR('F', 0x2a, NVOS54_PARAMETERS).
const rmControl = 0xc020462a

// controlArguments is NVOS54_PARAMETERS.
type controlArguments struct {
	client, object  uint32
	command, flags  uint32
	parameters      unsafe.Pointer
	size, theStatus uint32
}

// Ioctl is ioctl(2). A simulated driver brings its own.
type Ioctl func(fd int, request uintptr, argument unsafe.Pointer) unix.Errno

// System asks the kernel.
func System(fd int, request uintptr, argument unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument))
	return errno
}

// asker asks one question and returns the NV_STATUS of the resource manager.
type asker interface {
	control(client, object, command uint32, parameters unsafe.Pointer, size uintptr) (status uint32, err error)
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
	if errno := f.ioctl(f.fd, rmControl, unsafe.Pointer(arguments)); errno != 0 {
		return 0, fmt.Errorf("ioctl NV_ESC_RM_CONTROL: %w", errno)
	}
	return arguments.theStatus, nil
}

// client is a client that was made through one of a process's files.
type client struct {
	asker
	handle uint32
}

// clientsOf finds the clients of a process. The caller closes the files.
func clientsOf(ioctl Ioctl, pid int) (clients []client, files []controlFile, err error) {
	files, err = borrow(ioctl, pid)
	if err != nil {
		return nil, files, fmt.Errorf("process %d: %w: %w", pid, ErrUnknown, err)
	}
	// Not every file has a client: an exported handle is an open nvidiactl, too. A process's
	// other clients have numbers near that of its first. One that is missed shows in the sum
	// of the memory.
	from, to := uint32(firstClient), uint32(firstClient+mostClients)
	for _, f := range files {
		handle, err := findClient(f, from, to)
		if err != nil {
			return nil, files, fmt.Errorf("process %d: %w: %w", pid, ErrUnknown, err)
		}
		isKnown := func(c client) bool { return c.handle == handle } // one file can be open under several numbers
		if handle == 0 || slices.ContainsFunc(clients, isKnown) {
			continue
		}
		clients = append(clients, client{f, handle})
		from, to = max(from, handle-0x100), min(to, handle+0x400)
	}
	if len(clients) == 0 {
		return nil, files, fmt.Errorf("process %d: %w: no client of an open nvidiactl was found", pid, ErrUnknown)
	}
	return clients, files, nil
}

func closeAll(files []controlFile) {
	for _, f := range files {
		_ = unix.Close(f.fd)
	}
}

// borrow duplicates the process's descriptors of nvidiactl, the lowest first.
func borrow(ioctl Ioctl, pid int) (files []controlFile, err error) {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("pidfd_open: %w", err)
	}
	defer unix.Close(process)
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int {
		return cmp.Or(cmp.Compare(len(a.Name()), len(b.Name())), cmp.Compare(a.Name(), b.Name()))
	})
	for _, entry := range entries {
		link, err := os.Readlink(filepath.Join(dir, entry.Name()))
		if err != nil || filepath.Base(strings.TrimSuffix(link, " (deleted)")) != "nvidiactl" {
			continue // another file, or closed meanwhile
		}
		number, err := strconv.Atoi(entry.Name())
		if err != nil {
			return files, err
		}
		fd, err := unix.PidfdGetfd(process, number, 0)
		if errors.Is(err, unix.EBADF) {
			continue // closed meanwhile
		}
		if err != nil {
			return files, fmt.Errorf("pidfd_getfd of %s: %w", link, err)
		}
		files = append(files, controlFile{fd, ioctl})
	}
	return files, nil
}
