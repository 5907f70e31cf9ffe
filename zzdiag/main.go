package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/cudackpt"
)

func must(err error) {
	if err != nil {
		fmt.Println("FATAL", err)
		os.Exit(1)
	}
}

type ev struct {
	at  time.Duration
	dur time.Duration
	nr  uint64
	a   [4]uint64
	ret int64
}

func stat(pid, tid int) (ut, st, minflt uint64) {
	d, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stat", pid, tid))
	s := string(d)
	s = s[strings.LastIndex(s, ")")+2:]
	f := strings.Fields(s)
	minflt, _ = strconv.ParseUint(f[7], 10, 64)
	ut, _ = strconv.ParseUint(f[11], 10, 64)
	st, _ = strconv.ParseUint(f[12], 10, 64)
	return
}

func main() {
	pid, _ := strconv.Atoi(os.Args[1])
	logsys := len(os.Args) > 2 && os.Args[2] == "syscalls"
	ctx := context.Background()
	d, err := cudackpt.Open()
	must(err)
	p := d.Process(pid)
	proc, err := criuutil.OpenProcess(pid)
	must(err)
	tid, err := p.RestoreThreadID(ctx)
	must(err)
	must(p.Lock(ctx, cudackpt.LockOptions{Timeout: 10 * time.Second}))
	must(criuutil.Stop(ctx, proc))
	run := func(name string, call func() error) {
		before, _ := criuutil.ReadAddressSpace(pid)
		var events []ev
		begin := time.Now()
		var stopTrace atomic.Bool
		doneTrace := make(chan struct{})
		ready := make(chan struct{})
		var tracer *criuutil.Tracer
		if logsys {
			go func() {
				runtime.LockOSThread()
				defer close(doneTrace)
				must(unix.PtraceSeize(tid))
				var ws unix.WaitStatus
				_, err := unix.Wait4(tid, &ws, unix.WALL, nil)
				must(err)
				_ = unix.PtraceSetOptions(tid, unix.PTRACE_O_TRACESYSGOOD)
				_ = unix.PtraceSyscall(tid, 0)
				close(ready)
				var cur ev
				entry := true
				interrupted := false
				for {
					if stopTrace.Load() && !interrupted {
						_ = unix.PtraceInterrupt(tid)
						interrupted = true
					}
					g, err := unix.Wait4(tid, &ws, unix.WALL|unix.WNOHANG, nil)
					if err != nil {
						return
					}
					if g == 0 {
						runtime.Gosched()
						continue
					}
					if !ws.Stopped() {
						return
					}
					if ws.StopSignal() == unix.SIGTRAP|0x80 {
						var r unix.PtraceRegs
						_ = unix.PtraceGetRegs(tid, &r)
						if entry {
							cur = ev{at: time.Since(begin), nr: r.Orig_rax, a: [4]uint64{r.Rdi, r.Rsi, r.Rdx, r.R10}}
						} else {
							cur.ret = int64(r.Rax)
							cur.dur = time.Since(begin) - cur.at
							events = append(events, cur)
							e := cur
							if e.nr == 9 && e.a[1] >= 1<<20 || e.nr == 11 && e.a[1] >= 1<<20 || e.nr == 28 || e.nr == 25 || e.nr == 10 && e.a[1] >= 1<<20 || e.dur > 3*time.Millisecond {
								fmt.Printf("   %8.2fms nr=%d(%#x,%#x,%#x,%#x)=%#x dur=%v\n", float64(e.at.Microseconds())/1000, e.nr, e.a[0], e.a[1], e.a[2], e.a[3], e.ret, e.dur)
							}
						}
						entry = !entry
						_ = unix.PtraceSyscall(tid, 0)
						continue
					}
					if int(ws)>>16 == unix.PTRACE_EVENT_STOP && interrupted {
						_ = unix.PtraceDetach(tid)
						return
					}
					_ = unix.PtraceSyscall(tid, 0)
				}
			}()
			<-ready
		} else {
			tracer = criuutil.NewTracer()
			must(tracer.Run(tid))
		}
		ut0, st0, mf0 := stat(pid, tid)
		begin = time.Now()
		done := make(chan error, 1)
		go func() { done <- call() }()
		var cerr error
		last := time.Time{}
	loop:
		for {
			select {
			case cerr = <-done:
				break loop
			case <-time.After(5 * time.Millisecond):
			}
			space, err := criuutil.ReadAddressSpace(pid)
			if err != nil {
				continue
			}
			fresh := space.NewSince(before)
			if time.Since(last) > 150*time.Millisecond {
				last = time.Now()
				sm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
				ut, st, mf := stat(pid, tid)
				var big string
				sort.Slice(fresh, func(i, j int) bool { return fresh[i].Size() > fresh[j].Size() })
				for i, r := range fresh {
					if i < 4 {
						big += fmt.Sprintf(" %dM", r.Size()>>20)
					}
				}
				rss, _ := strconv.ParseUint(strings.Fields(string(sm))[1], 10, 64)
				fmt.Printf("%s %6.0fms new=%dM n=%d [%s] rss=%dM ut=%d st=%d minflt=%d\n", name, float64(time.Since(begin).Microseconds())/1000, criuutil.Total(fresh)>>20, len(fresh), big, rss*4096>>20, ut-ut0, st-st0, mf-mf0)
			}
		}
		el := time.Since(begin)
		ut, st, mf := stat(pid, tid)
		fmt.Printf("%s took %v err=%v restore thread: user %d ticks sys %d ticks minflt %d\n", name, el, cerr, ut-ut0, st-st0, mf-mf0)
		// all threads cpu
		tids, _ := criuutil.Threads(pid)
		for _, t := range tids {
			u, s, m := stat(pid, t)
			if u+s > 20 {
				fmt.Printf("   thread %d user %d sys %d minflt %d\n", t, u, s, m)
			}
		}
		if logsys {
			time.Sleep(100*time.Millisecond)
			agg := map[uint64][2]int64{}
			for _, e := range events {
				a := agg[e.nr]
				a[0]++
				a[1] += int64(e.dur)
				agg[e.nr] = a
			}
			fmt.Println(name, "syscalls nr: count total")
			for nr, a := range agg {
				fmt.Printf("   nr %d: %d calls %v\n", nr, a[0], time.Duration(a[1]))
			}
			n := 0
			for _, e := range events {
				if e.nr == 9 && e.a[1] >= 1<<20 || e.nr == 11 && e.a[1] >= 1<<20 || e.nr == 28 || e.nr == 25 || e.nr == 10 && e.a[1] >= 1<<20 || e.dur > 5*time.Millisecond {
					fmt.Printf("   %8.2fms nr=%d(%#x,%#x,%#x,%#x)=%#x dur=%v\n", float64(e.at.Microseconds())/1000, e.nr, e.a[0], e.a[1], e.a[2], e.a[3], e.ret, e.dur)
					if n++; n > 60 {
						break
					}
				}
			}
			// where time between syscalls goes: gaps
			type gap struct {
				at, d time.Duration
				nr    uint64
			}
			var gaps []gap
			for i := 1; i < len(events); i++ {
				g := events[i].at - (events[i-1].at + events[i-1].dur)
				gaps = append(gaps, gap{events[i-1].at, g, events[i].nr})
			}
			sort.Slice(gaps, func(i, j int) bool { return gaps[i].d > gaps[j].d })
			fmt.Println("events", len(events))
			defer os.Exit(0)
			for i, g := range gaps {
				if i < 12 {
					fmt.Printf("   gap at %v of %v before nr %d\n", g.at, g.d, g.nr)
				}
			}
		} else {
			must(tracer.Release(ctx))
		}
	}
	run("checkpoint", func() error { return p.Checkpoint(ctx) })
	// what the staging looks like
	sm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	lines := strings.Split(string(sm), "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, "Size:") {
			f := strings.Fields(l)
			n, _ := strconv.Atoi(f[1])
			if n > 100<<10 {
				rss := ""
				for j := i; j < i+26 && j < len(lines); j++ {
					for _, k := range []string{"Rss:", "AnonHugePages:", "THPeligible", "VmFlags", "Private_Dirty"} {
						if strings.HasPrefix(lines[j], k) {
							rss += " " + strings.Join(strings.Fields(lines[j]), " ")
						}
					}
				}
				fmt.Println("   map", lines[i-1], l, rss)
			}
		}
	}
	criuutil.WaitStopped(ctx, proc)
	run("restore", func() error { return p.Restore(ctx, cudackpt.RestoreOptions{}) })
	must(proc.Signal(unix.SIGCONT))
	must(p.Unlock(ctx))
	fmt.Println("back")
}
