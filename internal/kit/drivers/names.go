package drivers

import (
	"path/filepath"
	"regexp"
	"strings"
)

const (
	// Soname is that of the driver's library.
	Soname = "libcuda.so.1"
	// EventThread is the name of libcuda's threads in a process, one for each GPU, besides the restore thread.
	EventThread = "cuda-EvtHandlr"
	// SocketPrefix begins the name of the abstract UNIX socket on which each CUDA process listens. The number of its
	// pid namespace, a hyphen and its pid there follow.
	SocketPrefix = "cuda-uvmfd-"
	// ControlNode is the device file through which a client of the kernel module is made.
	ControlNode = "nvidiactl"
)

// GPUNode matches the name of the device file of a GPU, and no other of the driver's.
var GPUNode = regexp.MustCompile(`^nvidia[0-9]+$`)

// IsLibcuda tells a file that is libcuda from libraries with similar names, libcudart and libcudadebugger. In a
// container it can have a version in its name.
func IsLibcuda(path string) bool { return strings.HasPrefix(filepath.Base(path), "libcuda.so") }

// ContextMapping is the least that a process maps of the device file of a GPU on which it has a
// context, in bytes. Measured on driver 580: cuInit maps 128 KiB for each GPU that the process
// can see, and a context 2 MiB more. Peer access and memory change nothing in the mappings, nor
// in the descriptors and threads.
const ContextMapping = 1 << 20
