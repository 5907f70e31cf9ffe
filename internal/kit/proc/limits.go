package proc

import (
	"fmt"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/fault"
)

// leastFiles is more than the files that any of our programs has open at a time for a small job.
const leastFiles = 64

// FitLimits fails if this program may not have what it needs for any job. With raise it raises such a limit first, for
// the programs that it starts, too: not where a job would inherit it. Go itself raises the soft limit of open files.
func FitLimits(raise bool) error {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	enough := unix.Rlimit{Cur: max(leastFiles, files.Max), Max: max(leastFiles, files.Max)}
	if files.Cur < leastFiles && (!raise || unix.Setrlimit(unix.RLIMIT_NOFILE, &enough) != nil) {
		return fault.New(fmt.Sprintf("this command may have %d files open (ulimit -n), and needs at least %d", files.Cur, leastFiles),
			"raise that limit where it was set, or run it with CAP_SYS_RESOURCE")
	}
	if raise {
		_, _ = RaiseLimit(unix.RLIMIT_AS) // whether it is enough, the trial tells
	}
	const room = 1280 << 20 // with which a dump was seen to succeed, on two CPUs: threads have stacks, and room for malloc
	trial, err := unix.Mmap(-1, 0, room, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return fault.New(fmt.Sprintf("this command needs %d MiB more of address space than it may have (ulimit -v)",
			room>>20),
			"raise that limit where it was set, or run it with CAP_SYS_RESOURCE")
	}
	return unix.Munmap(trial)
}

// RaiseLimit raises a limit of this process as far as it may, for the programs that it starts, too, and returns what it
// was. Go starts programs with the limit of open files that it was started with, until another is set.
func RaiseLimit(resource int) (before unix.Rlimit, err error) {
	if err := unix.Getrlimit(resource, &before); err != nil {
		return before, fmt.Errorf("limit %d of resources: %w", resource, err)
	}
	none := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if resource != unix.RLIMIT_NOFILE && unix.Setrlimit(resource, &none) == nil {
		return before, nil
	}
	if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: before.Max, Max: before.Max}); err != nil {
		return before, fmt.Errorf("limit %d of resources: %w", resource, err)
	}
	return before, nil
}
