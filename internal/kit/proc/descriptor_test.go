package proc

import (
	"os"
	"os/exec"
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
			must(t, err)
			defer unix.Close(timer)
			// The timer as criu restores it.
			dead := unix.ItimerSpec{Interval: unix.Timespec{Nsec: 1e6}}
			must(t, unix.TimerfdSettime(timer, test.flags, &dead, nil))
			if test.ticks != 0 {
				const setTicks = 0x40085400 // TFD_IOC_SET_TICKS
				if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(timer), setTicks, uintptr(unsafe.Pointer(&test.ticks))); errno != 0 {
					t.Fatal(errno)
				}
			}
			process, err := Open(os.Getpid())
			must(t, err)
			defer process.Close()
			must(t, process.RearmTimers())
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

func TestSameFileKnowsInheritedDescriptors(t *testing.T) {
	first, err := os.Open(os.DevNull)
	must(t, err)
	defer first.Close()
	again, err := os.Open(os.DevNull)
	must(t, err)
	defer again.Close()
	cmd := exec.Command("/bin/sleep", "100")
	cmd.ExtraFiles = []*os.File{first} // descriptor 3
	must(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	for fd, want := range map[int]bool{int(first.Fd()): true, int(again.Fd()): false, 1 << 19: false} {
		if same, err := SameFile(cmd.Process.Pid, 3, os.Getpid(), fd); err != nil || same != want {
			t.Errorf("descriptor %d is the same file: %v (%v), want %v", fd, same, err, want)
		}
	}
	if memory, files, err := SharedTables(cmd.Process.Pid, os.Getpid()); err != nil || memory || files {
		t.Errorf("a process of its own shares its memory (%v) or its descriptors (%v, %v)", memory, files, err)
	}
	if memory, files, err := SharedTables(os.Getpid(), os.Getpid()); err != nil || !memory || !files {
		t.Errorf("a process does not share its memory (%v) or its descriptors (%v, %v) with itself", memory, files, err)
	}
	if _, err := SameFile(1<<22, 0, os.Getpid(), 0); err == nil {
		t.Error("there is no such process")
	}
}
