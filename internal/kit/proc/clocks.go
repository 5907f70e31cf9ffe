package proc

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Clocks reads the two clocks that a time namespace shifts, in the caller's.
func Clocks() (monotonic, boottime time.Duration, err error) {
	var now [2]unix.Timespec
	err = errors.Join(unix.ClockGettime(unix.CLOCK_MONOTONIC, &now[0]), unix.ClockGettime(unix.CLOCK_BOOTTIME, &now[1]))
	if err != nil {
		return 0, 0, fmt.Errorf("clocks: %w", err)
	}
	return time.Duration(now[0].Nano()), time.Duration(now[1].Nano()), nil
}
