package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// RearmTimers restarts the periodic timers (timerfd_create(2)) that criu has restored
// disarmed. An expired periodic timer starts again only when somebody reads it. Until then
// it has no time left, and criu takes it for disarmed. If a process was stopped for longer
// than a timer's period, that timer has expired.
//
// The timers expire at once, as they had before the dump. The process must not run.
func (p *Process) RearmTimers() error {
	open, err := Descriptors(p.PID)
	for fd, link := range open {
		if link != "anon_inode:[timerfd]" {
			continue
		}
		if err := p.rearmTimer(fd); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("timer on descriptor %d of process %d: %w", fd, p.PID, err)
		}
	}
	return err
}

func (p *Process) rearmTimer(fd int) error {
	info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", p.PID, fd))
	if err != nil {
		return err
	}
	_, text, _ := strings.Cut(string(info), "clockid:")
	var clock int32
	var ticks uint64
	var flags int
	var timer unix.ItimerSpec
	if _, err := fmt.Sscanf(text, "%d\nticks: %d\nsettime flags: %o\nit_value: (%d, %d)\nit_interval: (%d, %d)",
		&clock, &ticks, &flags, &timer.Value.Sec, &timer.Value.Nsec, &timer.Interval.Sec, &timer.Interval.Nsec); err != nil {
		return fmt.Errorf("its fdinfo could not be parsed: %w: %q", err, info)
	}
	if ticks == 0 || timer.Value != (unix.Timespec{}) || timer.Interval == (unix.Timespec{}) {
		return nil // disarmed by the program, a one-shot timer, or still running
	}
	timer.Value.Nsec = 1
	if flags&unix.TFD_TIMER_ABSTIME != 0 {
		if err := unix.ClockGettime(clock, &timer.Value); err != nil {
			return err
		}
	}
	own, err := p.DuplicateDescriptor(fd)
	if err != nil {
		return err
	}
	defer unix.Close(own)
	return unix.TimerfdSettime(own, flags, &timer, nil)
}
