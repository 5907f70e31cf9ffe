package nvrm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
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

// asker asks one question and returns the NV_STATUS of the resource manager.
type asker interface {
	control(client, object, command uint32, parameters unsafe.Pointer, size uintptr) (status uint32, err error)
}

// controlFile is an open /dev/nvidiactl.
type controlFile int

func (f controlFile) control(client, object, command uint32, parameters unsafe.Pointer, size uintptr) (uint32, error) {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	pinner.Pin(parameters)
	arguments := &controlArguments{client: client, object: object, command: command, parameters: parameters, size: uint32(size)}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(f), rmControl, uintptr(unsafe.Pointer(arguments))); errno != 0 {
		return 0, fmt.Errorf("ioctl NV_ESC_RM_CONTROL: %w", errno)
	}
	return arguments.theStatus, nil
}

// Read returns what a process holds in the resource manager, as far as the search finds it:
// see [WidestGap]. It needs CAP_SYS_PTRACE over the process. The error wraps [ErrUnknown]
// if the kernel module does not answer, or if the process has no nvidiactl open through
// which to ask.
func Read(pid, widestGap int) (Holdings, error) {
	var all Holdings
	err := eachClient(pid, widestGap, func(c contents) error {
		all.add(c)
		return nil
	})
	return all, err
}

// eachClient calls see for every client that was made through one of the process's files.
func eachClient(pid, widestGap int, see func(contents) error) error {
	files, err := borrow(pid)
	defer func() {
		for _, f := range files {
			_ = unix.Close(int(f))
		}
	}()
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	if len(files) == 0 {
		return fmt.Errorf("process %d: %w: no nvidiactl is open", pid, ErrUnknown)
	}
	seen := make(map[uint32]bool) // one file can be open under several numbers
	for _, f := range files {
		client, err := findClient(f)
		if err == nil && !seen[client] {
			seen[client] = true
			var c contents
			if c, err = scan(f, client, widestGap); err == nil {
				err = see(c)
			}
		}
		if err != nil {
			return fmt.Errorf("process %d: %w: %w", pid, ErrUnknown, err)
		}
	}
	return nil
}

// borrow duplicates the process's descriptors of nvidiactl.
func borrow(pid int) (files []controlFile, err error) {
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
		files = append(files, controlFile(fd))
	}
	return files, nil
}
