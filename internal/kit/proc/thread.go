package proc

import (
	"bytes"
	"fmt"
	"os"
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

// WhereIs says what a thread does, for an error about one that does not get on: its state, what it waits for in the
// kernel, and the number of its system call, as far as /proc tells.
func WhereIs(pid, tid int) string {
	stat, err := ThreadStat(pid, tid)
	if err != nil {
		return err.Error()
	}
	text := "in state " + stat.State
	dir := fmt.Sprintf("/proc/%d/task/%d/", pid, tid)
	if where, _ := os.ReadFile(dir + "wchan"); len(where) > 1 { // a single 0: it runs
		text += " in " + string(where)
	}
	call, _ := os.ReadFile(dir + "syscall")
	if number, _, found := bytes.Cut(call, []byte(" ")); found {
		text += " (system call " + string(number) + ")"
	}
	return text
}
