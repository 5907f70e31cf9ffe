package programs

import (
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// How many programs run at once, the undisturbed ones not counted, and how many of them are
// being dumped or restored. Most of a program's time goes into loading its libraries.
const (
	programsAtOnce = 8
	dumpsAtOnce    = 2
)

// bench is a machine on which programs are measured, several at a time.
type bench struct {
	host   *testenv.Host
	gpus   int
	report *report

	programs, dumps, greedy chan struct{} // a place in each is held while it is used
}

func newBench(t *testing.T) *bench {
	t.Helper()
	host := testenv.NewHost(t, 1)
	return &bench{
		host: host, gpus: len(host.UUIDs()), report: newReport(t, host),
		programs: make(chan struct{}, programsAtOnce), dumps: make(chan struct{}, dumpsAtOnce), greedy: make(chan struct{}, 1),
	}
}

// place waits for a free place. The function that it returns gives it back, once.
func place(places chan struct{}) func() {
	places <- struct{}{}
	return sync.OnceFunc(func() { <-places })
}

// growMemory makes this machine as large as it can be, if it is one whose memory grows with
// its use: until then such a machine says that it has too little for a large job. The
// variable says up to how many GiB.
func growMemory(t *testing.T) {
	t.Helper()
	text := os.Getenv("CUCRIU_GROW_GIB")
	if text == "" {
		return
	}
	gib, err := strconv.Atoi(text)
	if err != nil || gib <= 0 {
		t.Fatalf("CUCRIU_GROW_GIB is %q, which is no number of GiB", text)
	}
	begun := time.Now()
	memory, err := unix.Mmap(-1, 0, gib<<30, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	const parts = 8
	var touched sync.WaitGroup
	for part := range parts {
		touched.Go(func() {
			size := len(memory) / parts
			for at := part * size; at < (part+1)*size; at += os.Getpagesize() {
				memory[at] = 1
			}
		})
	}
	touched.Wait()
	if err := unix.Munmap(memory); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d GiB of memory were used once, in %v", gib, time.Since(begun))
}
