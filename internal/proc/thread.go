package proc

import (
	"runtime"
	"sync"

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

// AtOnce does something n times, for the numbers from 0 on, and at most so many of them at once. It waits
// for all of them.
func AtOnce(most, n int, do func(i int)) {
	var wg sync.WaitGroup
	free := make(chan struct{}, max(most, 1))
	for i := range n {
		free <- struct{}{}
		wg.Go(func() {
			do(i)
			<-free
		})
	}
	wg.Wait()
}
