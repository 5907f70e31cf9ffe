package proc

import (
	"fmt"

	"golang.org/x/sys/unix"
)

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
