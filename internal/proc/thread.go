package proc

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// OnOwnThread calls f on an OS thread that ends afterwards, with whatever f has changed of it, and returns
// the ID of that thread. It is not the main thread, which never ends, and which /proc shows as the process.
func OnOwnThread(f func()) (tid int) {
	done := make(chan int)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the OS thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			done <- OnOwnThread(f)
			runtime.UnlockOSThread()
			return
		}
		f()
		done <- unix.Gettid()
	}()
	return <-done
}
