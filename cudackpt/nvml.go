package cudackpt

import (
	"fmt"
	"unsafe"

	"github.com/ebitengine/purego"
)

// This file binds the five calls of NVML (libnvidia-ml.so.1) that the package needs. NVML asks
// the kernel's driver without a CUDA context. A context would take some hundred megabytes of
// the GPU whose free memory is in question.

// nvmlMemory is nvmlMemory_t: bytes.
type nvmlMemory struct{ total, free, used uint64 }

// nvmlProcessInfo is the nvmlProcessInfo_t of the _v2 and _v3 calls.
type nvmlProcessInfo struct {
	pid               uint32
	_                 uint32
	usedGPUMemory     uint64 // bytes; all bits set if not available
	gpuInstanceID     uint32
	computeInstanceID uint32
}

// The nvmlReturn_t values that this file handles.
const (
	nvmlSuccess          = 0
	nvmlInsufficientSize = 7
)

// nvml is the library, loaded and initialized at first use. Only success is remembered: a
// driver that is being installed or reset may answer later. The zero nvml is ready to use. It
// takes no lock, because nvmlTurn lets in only one caller at a time.
type nvml struct {
	open                                                  bool
	init, handleByUUID, memoryInfo, computeProcs, errText uintptr
}

// ensure loads and initializes NVML.
func (n *nvml) ensure(candidates []string) error {
	if n.open {
		return nil
	}
	lib, err := openLibrary(candidates)
	if err != nil {
		return err
	}
	for name, address := range map[string]*uintptr{
		"nvmlInit_v2":                             &n.init,
		"nvmlDeviceGetHandleByUUID":               &n.handleByUUID,
		"nvmlDeviceGetMemoryInfo":                 &n.memoryInfo,
		"nvmlDeviceGetComputeRunningProcesses_v3": &n.computeProcs,
		"nvmlErrorString":                         &n.errText,
	} {
		if *address = symbol(lib.handle, name); *address == 0 {
			return fmt.Errorf("%s does not export %s: it needs NVIDIA driver 510 or newer", lib.name, name)
		}
	}
	if r, _, _ := purego.SyscallN(n.init); uint32(r) != nvmlSuccess {
		return n.failure("nvmlInit_v2", uint32(r))
	}
	n.open = true
	return nil
}

// memory returns the total and free bytes of one GPU.
func (n *nvml) memory(uuid UUID) (nvmlMemory, error) {
	device, err := n.device(uuid)
	if err != nil {
		return nvmlMemory{}, err
	}
	memory := new(nvmlMemory)
	if r, _, _ := purego.SyscallN(n.memoryInfo, device, uintptr(unsafe.Pointer(memory))); uint32(r) != nvmlSuccess {
		return nvmlMemory{}, n.failure("nvmlDeviceGetMemoryInfo of "+uuid.String(), uint32(r))
	}
	return *memory, nil
}

// computeProcesses returns the processes that have a context on one GPU.
func (n *nvml) computeProcesses(uuid UUID) ([]nvmlProcessInfo, error) {
	device, err := n.device(uuid)
	if err != nil {
		return nil, err
	}
	// The call needs a buffer. If that is too small, it answers INSUFFICIENT_SIZE and the size
	// that it needs. Processes come and go, so leave room and ask again until the list fits.
	const room = 16
	for size := uint32(room); ; {
		list := make([]nvmlProcessInfo, size)
		count := new(uint32)
		*count = size
		r, _, _ := purego.SyscallN(n.computeProcs, device, uintptr(unsafe.Pointer(count)), uintptr(unsafe.Pointer(&list[0])))
		switch uint32(r) {
		case nvmlSuccess:
			return list[:min(*count, size)], nil
		case nvmlInsufficientSize:
			size = max(*count, size) + room
		default:
			return nil, n.failure("nvmlDeviceGetComputeRunningProcesses_v3 of "+uuid.String(), uint32(r))
		}
	}
}

func (n *nvml) device(uuid UUID) (uintptr, error) {
	text := append([]byte(uuid.String()), 0)
	device := new(uintptr)
	if r, _, _ := purego.SyscallN(n.handleByUUID, uintptr(unsafe.Pointer(&text[0])), uintptr(unsafe.Pointer(device))); uint32(r) != nvmlSuccess {
		return 0, n.failure("nvmlDeviceGetHandleByUUID of "+uuid.String(), uint32(r))
	}
	return *device, nil
}

// failure asks NVML itself for the text of the error.
func (n *nvml) failure(call string, code uint32) error {
	var errorString func(code uint32) string
	purego.RegisterFunc(&errorString, n.errText)
	return &NVMLError{Call: call, Code: code, Text: errorString(code)}
}

// NVMLError is an NVML call that failed.
type NVMLError struct {
	Call string // with the GPU that the call was about
	Code uint32 // nvmlReturn_t
	Text string // what NVML says about it
}

// Error returns call, text and code.
func (e *NVMLError) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Text, e.Code) }
