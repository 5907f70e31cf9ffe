package inject

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// mapping is a request to a mapper.
type mapping struct{ Size, Flags uint64 }

// mapped is its answer: where the mapping is, and the first and the last word that it finds
// there.
type mapped struct{ Start, First, Last uint64 }

// runMapper makes mappings on request and keeps each until the next. It uses one thread and
// raw system calls, because Go's scheduler would need the other threads.
func runMapper() {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// Not the first thread, which another tracer is to borrow.
		go runMapper()
		select {}
	}
	// This call is raw, too: a thread that is stopped on its way back from a call that the
	// scheduler knows of waits for another thread to let it go on.
	told := fmt.Appendln(nil, unix.Gettid())
	unix.RawSyscall(unix.SYS_WRITE, 1, uintptr(unsafe.Pointer(&told[0])), uintptr(len(told)))
	var ask mapping
	var start, size uintptr
	for {
		if n, _, _ := unix.RawSyscall(unix.SYS_READ, 3, uintptr(unsafe.Pointer(&ask)), unsafe.Sizeof(ask)); n != unsafe.Sizeof(ask) {
			os.Exit(0)
		}
		if size > 0 {
			unix.RawSyscall(unix.SYS_MUNMAP, start, size, 0)
		}
		size = uintptr(ask.Size)
		var errno unix.Errno
		if start, _, errno = unix.RawSyscall6(unix.SYS_MMAP, 0, size, unix.PROT_READ|unix.PROT_WRITE, uintptr(ask.Flags), ^uintptr(0), 0); errno != 0 {
			os.Exit(1)
		}
		unix.RawSyscall(unix.SYS_WRITE, 4, uintptr(unsafe.Pointer(&start)), 8)
		unix.RawSyscall(unix.SYS_WRITE, 4, start, 8)
		unix.RawSyscall(unix.SYS_WRITE, 4, start+size-8, 8)
	}
}

// mapper is a stopped process that runs runMapper.
type mapper struct {
	*proc.Process
	tid     int
	ask     io.Writer
	answers *os.File
}

func startMapper(t *testing.T) *mapper {
	t.Helper()
	fromUs, ask, err := os.Pipe()
	must(t, err)
	defer fromUs.Close()
	answers, fromIt, err := os.Pipe()
	must(t, err)
	defer fromIt.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "CRIUUTIL_TARGET=mapper")
	cmd.ExtraFiles = []*os.File{fromUs, fromIt}
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		ask.Close()
		answers.Close()
	})
	p := &mapper{ask: ask, answers: answers}
	_, err = fmt.Fscan(out, &p.tid)
	must(t, err)
	p.Process = open(t, cmd.Process.Pid)
	must(t, proc.Stop(t.Context(), p.Process))
	return p
}

func (p *mapper) request(m mapping) (mapped, error) {
	var got mapped
	_ = p.answers.SetReadDeadline(time.Now().Add(time.Minute))
	err := binary.Write(p.ask, binary.NativeEndian, m)
	if err == nil {
		err = binary.Read(p.answers, binary.NativeEndian, &got)
	}
	return got, err
}

// present counts the pages of a range that are in memory.
func present(pid int, r proc.Range) (int, error) {
	f, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "pagemap"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	page := uint64(unix.Getpagesize())
	entries := make([]uint64, r.Size()/page)
	err = binary.Read(io.NewSectionReader(f, int64(r.Start/page*8), int64(len(entries)*8)), binary.NativeEndian, entries)
	n := 0
	for _, entry := range entries {
		if entry>>63 == 1 {
			n++
		}
	}
	return n, err
}

// word is what populate writes, and what the tests look for.
const word = 0x5eed_0f_ca11ed

// TestAMappingIsPopulatedByTheCallback also checks that other mappings are left alone.
func TestAMappingIsPopulatedByTheCallback(t *testing.T) {
	const (
		least   = 1 << 20
		private = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	)
	page := uint64(unix.Getpagesize())
	p := startMapper(t)
	var asked mapping
	var told []proc.Range
	more := true
	// On the tracing OS thread, the only one that may read the registers.
	populate := func(r proc.Range) bool {
		told = append(told, r)
		if n, err := present(p.PID, r); n != 0 || err != nil {
			t.Errorf("%d pages of %#x are there already: %v", n, r, err)
		}
		var regs registers
		if err := regs.read(p.tid); err != nil || regs.argument(3) != asked.Flags || regs.argument(1) != asked.Size || uint64(regs.result()) != r.Start {
			t.Errorf("the call has flags %#x, size %#x, result %#x; asked for %+v, told of %#x: %v", regs.argument(3), regs.argument(1), regs.result(), asked, r, err)
		}
		for _, at := range []uint64{r.Start, r.Start + asked.Size - 8} {
			if err := p.WriteMemory(binary.NativeEndian.AppendUint64(nil, word), at); err != nil {
				t.Error(err)
			}
		}
		return more
	}
	tracer := NewTracer()
	must(t, tracer.RunPopulating(p.tid, least, populate))
	for _, test := range []struct {
		name        string
		asked       mapping
		told, ready bool // by the kernel
	}{
		{"the least", mapping{least, private | unix.MAP_POPULATE}, true, false},
		{"no whole pages", mapping{4<<20 + 24, private | unix.MAP_POPULATE | unix.MAP_NORESERVE}, true, false},
		{"too small", mapping{least - page, private | unix.MAP_POPULATE}, false, true},
		{"shared", mapping{4 << 20, unix.MAP_SHARED | unix.MAP_ANONYMOUS | unix.MAP_POPULATE}, false, true},
		{"not to be populated", mapping{4 << 20, private}, false, false},
		{"the last", mapping{4 << 20, private | unix.MAP_POPULATE}, true, false},
		{"after the last", mapping{4 << 20, private | unix.MAP_POPULATE}, false, true},
	} {
		asked, told, more = test.asked, nil, test.name != "the last"
		got, err := p.request(test.asked)
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		whole := proc.Range{Start: got.Start, End: got.Start + (asked.Size+page-1)/page*page}
		if test.told != (len(told) == 1) || test.told && told[0] != whole {
			t.Errorf("%s: told of %#x, mapped is %#x", test.name, told, whole)
		}
		if want := map[bool]uint64{true: word}[test.told]; got.First != want || got.Last != want {
			t.Errorf("%s: the thread finds %#x and %#x, want %#x", test.name, got.First, got.Last, want)
		}
		if n, err := present(p.PID, whole); err != nil || test.ready && n != int(whole.Size()/page) {
			t.Errorf("%s: %d of %d pages are there: %v", test.name, n, whole.Size()/page, err)
		}
	}
	must(t, tracer.Release(t.Context()))
	must(t, proc.WaitStopped(t.Context(), p.Process))
}

// keepMapping makes a mapper map all the time and counts the mappings. It fails the test,
// at the latest at its end, if a mapping is wrong.
func (p *mapper) keepMapping(t *testing.T) *atomic.Int64 {
	rounds, wrong, over := new(atomic.Int64), make(chan error, 1), make(chan struct{})
	go func() {
		defer close(wrong)
		for {
			got, err := p.request(mapping{1 << 20, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_POPULATE})
			select {
			case <-over:
				return
			default:
			}
			if err != nil || got.First != 0 || got.Last != 0 {
				wrong <- fmt.Errorf("round %d: %+v %w", rounds.Load(), got, err)
				return
			}
			rounds.Add(1)
		}
	}()
	t.Cleanup(func() {
		close(over)
		_ = p.Signal(unix.SIGKILL)
		if err := <-wrong; err != nil {
			t.Error(err)
		}
	})
	return rounds
}

// goesOn waits until the mapper has made some more mappings.
func goesOn(t *testing.T, rounds *atomic.Int64, when string) {
	t.Helper()
	from := rounds.Load()
	eventually(t, when+" thread maps on", func() bool { return rounds.Load() >= from+3 })
}

// TestAPopulatingThreadIsReleasedAnywhere: also in the middle of a system call.
func TestAPopulatingThreadIsReleasedAnywhere(t *testing.T) {
	testEndOfPopulating(t, 50, 29*time.Microsecond, func(p *mapper) (end func()) {
		tracer := NewTracer()
		must(t, tracer.RunPopulating(p.tid, 1<<20, func(proc.Range) bool { return true }))
		return func() { must(t, tracer.Release(t.Context())) }
	})
}

func TestATracerThatIsKilledLeavesAPopulatingThreadWhole(t *testing.T) {
	testEndOfPopulating(t, 20, 73*time.Microsecond, func(p *mapper) (end func()) {
		tracer := exec.Command("/proc/self/exe")
		tracer.Env = append(os.Environ(), "CRIUUTIL_TARGET=populater", "CRIUUTIL_TID="+strconv.Itoa(p.tid))
		out, err := tracer.StdoutPipe()
		must(t, err)
		must(t, tracer.Start())
		if _, err := fmt.Fscanln(out, new(string)); err != nil {
			t.Fatalf("the tracer: %v", err)
		}
		return func() {
			_ = tracer.Process.Kill()
			_ = tracer.Wait()
		}
	})
}

// testEndOfPopulating ends a trace some times, each time a step later. The thread must be in the
// group-stop then, as before, and its mappings must be right.
func testEndOfPopulating(t *testing.T, times int, step time.Duration, trace func(*mapper) (end func())) {
	t.Helper()
	p := startMapper(t)
	rounds := p.keepMapping(t)
	for i := range times {
		end := trace(p)
		if i%5 == 0 {
			goesOn(t, rounds, "traced")
		}
		time.Sleep(time.Duration(i) * step)
		end()
		must(t, proc.WaitStopped(t.Context(), p.Process))
	}
	must(t, p.Signal(unix.SIGCONT))
	goesOn(t, rounds, "continued")
}

// runPopulater traces a mapper until it is killed.
func runPopulater(tid string) error {
	n, err := strconv.Atoi(tid)
	if err != nil {
		return err
	}
	if err := NewTracer().RunPopulating(n, 1<<20, func(proc.Range) bool { return true }); err != nil {
		return err
	}
	fmt.Println("tracing")
	select {}
}

// TestAProcessIsKilledBesideBothOfItsTracers: the kernel reports the end of the first
// thread to its tracer only when the other tracer has seen the end of its own thread, and
// that tracer waits for the first one.
func TestAProcessIsKilledBesideBothOfItsTracers(t *testing.T) {
	p := startMapper(t)
	if p.tid == p.PID {
		t.Fatal("the mapping thread is to be another than the first")
	}
	lent, err := Borrow(t.Context(), p.PID, []int{p.PID}, filepath.Join(t.TempDir(), "threads"))
	must(t, err)
	failed := make(chan error, 1)
	tracer := NewTracer()
	err = tracer.RunPopulating(p.tid, 1<<20, func(r proc.Range) bool {
		if err := p.Signal(unix.SIGKILL); err != nil {
			t.Error(err)
		}
		failed <- lent.Madvise(t.Context(), []proc.Range{r}, unix.MADV_POPULATE_WRITE)
		return false
	})
	must(t, err)
	go func() { _, _ = p.request(mapping{1 << 20, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_POPULATE}) }()
	select {
	case err := <-failed:
		if !errors.Is(err, proc.ErrGone) {
			t.Errorf("a call in a process that was killed: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the tracers wait for each other")
	}
	if err := errors.Join(tracer.Release(t.Context()), lent.Return(t.Context())); err != nil {
		t.Error(err)
	}
	if err := p.WaitExit(t.Context()); err != nil {
		t.Error(err)
	}
}
