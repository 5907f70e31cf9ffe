package proc

import (
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestRearmTimers(t *testing.T) {
	for _, test := range []struct {
		name         string
		clock, flags int
		ticks        uint64 // 0: the program has disarmed it
	}{
		{"relative", unix.CLOCK_MONOTONIC, 0, 1},
		{"absolute", unix.CLOCK_REALTIME, unix.TFD_TIMER_ABSTIME, 1},
		{"disarmed", unix.CLOCK_MONOTONIC, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			timer, err := unix.TimerfdCreate(test.clock, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(timer)
			// The timer as criu restores it.
			dead := unix.ItimerSpec{Interval: unix.Timespec{Nsec: 1e6}}
			if err := unix.TimerfdSettime(timer, test.flags, &dead, nil); err != nil {
				t.Fatal(err)
			}
			if test.ticks != 0 {
				const setTicks = 0x40085400 // TFD_IOC_SET_TICKS
				if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(timer), setTicks, uintptr(unsafe.Pointer(&test.ticks))); errno != 0 {
					t.Fatal(errno)
				}
			}
			process, err := Open(os.Getpid())
			if err != nil {
				t.Fatal(err)
			}
			defer process.Close()
			if err := process.RearmTimers(); err != nil {
				t.Fatal(err)
			}
			if test.ticks == 0 {
				var now unix.ItimerSpec
				if err := unix.TimerfdGettime(timer, &now); err != nil || now.Value != (unix.Timespec{}) {
					t.Fatalf("it is armed: %+v, %v", now, err)
				}
				return
			}
			for range 3 { // an expired timer that is not restarted can be read only once
				fds := []unix.PollFd{{Fd: int32(timer), Events: unix.POLLIN}}
				n, err := unix.Poll(fds, 20_000)
				for err == unix.EINTR {
					n, err = unix.Poll(fds, 20_000)
				}
				var count [8]byte
				if err != nil || n != 1 {
					t.Fatalf("it does not expire: %d, %v", n, err)
				}
				if _, err := unix.Read(timer, count[:]); err != nil {
					t.Fatal(err)
				}
				if missed := *(*uint64)(unsafe.Pointer(&count)); missed > 100_000 {
					t.Fatalf("it expired %d times at once", missed)
				}
			}
		})
	}
}
