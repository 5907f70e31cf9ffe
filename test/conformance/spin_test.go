package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// TestAProcessIsServedAtWhateverInstructionItWasStopped shows which calls need only the
// restore thread if a process was stopped while one of its threads was inside the driver:
// state, checkpoint and restore. Unlock needs more: in some of the rounds it hangs, and
// returns as soon as the other threads run. CUCRIU_SPIN_ROUNDS sets the number of rounds.
func TestAProcessIsServedAtWhateverInstructionItWasStopped(t *testing.T) {
	rounds := 10
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
				// Below a shell, because a parent that waits would take the ptrace-stops.
				job := host.StartUnder([]string{"/bin/sh", "-c", `"$@" & wait`, "sh"}, 1, "--spin", mode)
				s := &spinner{t: t}
				p, err := proc.Open(job.MustStatus(0).PID)
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
				s.p, s.cuda = p, host.Driver().Process(p.PID)
				for i := range rounds {
					s.round(i%10 == 0)
				}
				fmt.Printf("spin   %-14s %d rounds, %d of them with checkpoint and restore; %d unlocks hung until the other threads ran\n",
					mode, rounds, (rounds+9)/10, s.hung)
				job.Runs()
			})
		})
	}
}

type spinner struct {
	t    *testing.T
	p    *proc.Process
	cuda cudackpt.Process
	hung int // how many unlocks hung
}

func (s *spinner) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// round locks and stops the process, and makes the calls through the restore thread.
func (s *spinner) round(checkpoint bool) {
	ctx, cancel := context.WithTimeout(s.t.Context(), testenv.Soon)
	defer cancel()
	s.t.Helper()
	s.must(s.cuda.Lock(ctx, cudackpt.LockOptions{Timeout: testenv.Soon}))
	s.must(proc.Stop(ctx, s.p))
	tracer := inject.NewTracer()
	tid, err := s.cuda.RestoreThreadID(ctx)
	s.must(err)
	s.must(tracer.Run(tid))
	_, err = s.cuda.State(ctx)
	s.must(err)
	if checkpoint {
		s.must(s.cuda.Checkpoint(ctx))
		s.must(s.cuda.Restore(ctx, cudackpt.RestoreOptions{}))
	}
	for late := new(cudackpt.InterruptedError); ; {
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		err = s.cuda.Unlock(short)
		cancel()
		if !errors.As(err, &late) || late.Started || ctx.Err() != nil { // else the deadline came first, on a busy machine
			break
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		s.hung++
	} else {
		s.must(err)
	}
	s.must(tracer.Release(ctx))
	s.must(s.p.Signal(unix.SIGCONT))
	s.must(s.cuda.Settle(ctx))
	running, err := s.cuda.IsRunning(ctx)
	s.must(err)
	if !running {
		s.t.Fatal("the unlock has not taken place")
	}
}
