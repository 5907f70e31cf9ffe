package self

import (
	"os"
	"runtime"
	"runtime/debug"
)

// DumpMemory returns how much memory criu, the hook, the watcher and the command take for a dump, in
// bytes. They were measured at 17 MiB (9, 5 and 2, and what the kernel keeps for them), and each
// thread that copies has two buffers. It is twice that, because a control group of cgroup v1 that is
// nearly full of a file's pages kills rather than waits for the disk.
func DumpMemory() uint64 { return 2*(17<<20) + uint64(min(runtime.NumCPU(), 32))<<20 }

// LimitMemory has this process collect its garbage before it takes more than a dump counts with.
func LimitMemory() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(DumpMemory()))
	}
}
