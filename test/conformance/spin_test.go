package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/cudackpt"
	"cucriu/internal/testenv"
)

// TestStoppedAtAnyInstruction asks how often a process that is stopped while one
// of its threads is inside the driver cannot be worked on through its restore
// thread alone, and whether letting the others run for a moment helps.
// CUCRIU_SPIN_ROUNDS sets the number of rounds for each kind of call.
func TestStoppedAtAnyInstruction(t *testing.T) {
	rounds := 20
	if text := os.Getenv("CUCRIU_SPIN_ROUNDS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	for _, mode := range []string{"stream-sync", "event-sync", "ctx-sync", "stream-query", "event-query"} {
		t.Run(mode, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				// Below a shell: a parent that waits would take the ptrace-stops.
				job := host.StartUnder([]string{"/bin/sh", "-c", `"$@" & wait`, "sh"}, 1, "--spin", mode)
				s := &spinner{t: t, driver: host.Driver()}
				p, err := criuutil.OpenProcess(job.MustStatus(0).PID)
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
				s.p, s.cuda = p, s.driver.Process(p.PID)
				for i := range rounds {
					s.round(i, i%10 == 0)
				}
				fmt.Printf("spin   %-14s %4d rounds, hung: %v, helped by running all: %d\n", mode, rounds, s.hung, s.helped)
				job.Runs()
			})
		})
	}
}

type spinner struct {
	t      *testing.T
	driver *cudackpt.Driver
	p      *criuutil.Process
	cuda   cudackpt.Process
	hung   map[string]int
	helped int
	stacks bool
}

// call makes a driver call and reports whether it hung.
func (s *spinner) call(name string, do func(context.Context) error) bool {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 1500*time.Millisecond)
	defer cancel()
	err := do(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		if s.hung == nil {
			s.hung = make(map[string]int)
		}
		s.hung[name]++
		return true
	}
	if err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
	return false
}

func (s *spinner) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// round locks, stops, and works through the restore thread, with a checkpoint
// or without.
func (s *spinner) round(n int, checkpoint bool) {
	t := s.t
	t.Helper()
	s.must(s.cuda.Lock(t.Context(), cudackpt.LockOptions{Timeout: 5 * time.Second}))
	s.must(criuutil.Stop(t.Context(), s.p))
	tracer := criuutil.NewTracer()
	tid, err := s.cuda.RestoreThreadID(t.Context())
	s.must(err)
	s.must(tracer.Run(tid))
	state := func(ctx context.Context) error { _, err := s.cuda.State(ctx); return err }
	calls := []struct {
		name string
		do   func(context.Context) error
	}{{"state", state}}
	if checkpoint {
		calls = append(calls, []struct {
			name string
			do   func(context.Context) error
		}{
			{"checkpoint", s.cuda.Checkpoint},
			{"state checkpointed", state},
			{"restore", func(ctx context.Context) error { return s.cuda.Restore(ctx, cudackpt.RestoreOptions{}) }},
		}...)
	}
	calls = append(calls, struct {
		name string
		do   func(context.Context) error
	}{"unlock", s.cuda.Unlock})
	for _, c := range calls {
		if !s.call(c.name, c.do) {
			continue
		}
		fmt.Printf("round %d: %s hangs\n", n, c.name)
		s.showThreads()
		s.runOthers(tracer, tid, c.name)
	}
	s.must(tracer.Release(t.Context()))
	s.must(s.p.Signal(unix.SIGCONT))
	time.Sleep(time.Millisecond)
}

// runOthers lets the other threads run for a moment, again and again, until the
// call that hangs has returned.
func (s *spinner) runOthers(tracer *criuutil.Tracer, restoreThread int, name string) {
	s.t.Helper()
	for try := 1; try <= 20; try++ {
		tids, err := criuutil.Threads(s.p.PID)
		s.must(err)
		others := criuutil.NewTracer()
		for _, tid := range tids {
			if tid != restoreThread {
				s.must(others.Run(tid))
			}
		}
		time.Sleep(2 * time.Millisecond)
		s.must(others.Release(s.t.Context()))
		ctx, cancel := context.WithTimeout(s.t.Context(), 300*time.Millisecond)
		err = s.cuda.Settle(ctx)
		cancel()
		if err == nil {
			s.helped++
			fmt.Printf("  %s returned after the others ran %d times\n", name, try)
			return
		}
	}
	s.t.Fatalf("%s never returned", name)
}

// showThreads prints where each thread is; with a debugger, once, with stacks.
func (s *spinner) showThreads() {
	tids, _ := criuutil.Threads(s.p.PID)
	for _, tid := range tids {
		var line string
		for _, file := range []string{"comm", "wchan", "syscall"} {
			data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/%s", s.p.PID, tid, file))
			line += fmt.Sprintf(" %q", data)
		}
		fmt.Printf("  thread %d:%s\n", tid, line)
	}
	debugger, err := exec.LookPath("cuda-gdb")
	if err != nil || s.stacks {
		return
	}
	s.stacks = true
	out, err := exec.Command("timeout", "-s", "KILL", "40", debugger, "-p", strconv.Itoa(s.p.PID), "-batch", "-ex", "thread apply all bt 10").CombinedOutput()
	fmt.Printf("stacks (%v):\n%s\n", err, out)
}
