package engine

import (
	"context"
	"errors"
	"os"
	"runtime"
	"time"

	"cucriu/cudackpt"
	"cucriu/internal/core/agent"
	"cucriu/internal/core/gpumap"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/proc"
)

// Target is a CUDA process at hand: the member of a session, its pidfd, and the driver's view of it.
type Target struct {
	*proc.Process
	Member   *journal.Member
	CUDA     cudackpt.Process
	locked   bool              // by the current try of the lock
	Frozen   bool              // by a v1 freezer instead of stopped, for criu to dump
	Tracer   *inject.Tracer    // of a dump or suspend: lets the restore thread run
	Before   proc.AddressSpace // what was mapped before the checkpoint
	prefault *prefault         // of a dump or suspend: makes the staging memory ready
	Parked   *inject.Parked    // its parked threads; nil if it is held by its stop alone
	unheld   []int             // the threads that were not parked
	Lent     *inject.Borrowed  // threads of it that drop its memory
	agent    *agent.Agent      // the library in it; nil if the driver alone moves its memory
	Compare  Compare           // of a dump: what the library is to find out
	canKeep  bool              // the GPUs can keep what the library moves
	pairs    gpumap.Pairs      // of the way back: what the driver is told of the plan
	kept     *os.File          // of the way back: a socket with what they keep
	lacks    lack              // of the way back: what is in files only
	direct   bool              // of the way back: the library reads from them what it has moved
	check    chan error        // of the way back: whether that is what was written; nil if nobody finds out
	filled   bool              // of the way back: all that was lacking is there
	moved    proc.Range        // of the way back: where the library keeps what it has moved to the host

	everLocked bool // at some time: its work ends
}

// Compare says what a library is to find out of the memory that it moves to the host.
type Compare struct {
	Generation uint64        // how it is to call what is there now; 0: it is to find out nothing
	Base       *imagedir.Out // of an earlier image that has all of it; nil if there is none
	CopyAll    bool          // also what has not changed
}

func CloseTargets(targets []*Target) {
	for _, t := range targets {
		t.Close()
	}
}

func ProcessesOf(targets []*Target) []*proc.Process {
	processes := make([]*proc.Process, len(targets))
	for i, t := range targets {
		processes[i] = t.Process
	}
	return processes
}

// OpenTargets opens the driver and takes hold of the members of a session that have not ended. Without
// members it needs no driver, and returns none.
func OpenTargets(s *session.Session) (*cudackpt.Driver, []*Target, error) {
	if len(s.Members) == 0 {
		return nil, nil, nil
	}
	driver, err := s.Env.OpenDriver()
	if err != nil {
		return nil, nil, err
	}
	targets, err := OpenMembers(driver, s.Members)
	return driver, targets, err
}

// OpenMembers takes hold of the members of a session. It leaves out those that have ended.
func OpenMembers(driver *cudackpt.Driver, members []journal.Member) ([]*Target, error) {
	var targets []*Target
	for i := range members {
		process, err := proc.Reopen(members[i].Ident)
		if errors.Is(err, proc.ErrGone) {
			continue
		}
		if err != nil {
			CloseTargets(targets)
			return nil, err
		}
		targets = append(targets, &Target{Process: process, Member: &members[i], CUDA: driver.Process(process.PID)})
	}
	return targets, nil
}

// runRestoreThreads lets the restore threads run, while the rest of their processes stays stopped. The
// driver works through these threads.
func runRestoreThreads(ctx context.Context, tracer *inject.Tracer, targets []*Target) error {
	for _, t := range targets {
		tid, err := t.CUDA.RestoreThreadID(ctx)
		if err != nil {
			return err
		}
		if err := tracer.Run(tid); err != nil {
			return err
		}
	}
	return nil
}

// runAllThreads lets every thread of a stopped process run, without a SIGCONT: the process and its
// parent would notice that.
func runAllThreads(tracer *inject.Tracer, t *Target) error {
	tids, err := proc.Threads(t.PID)
	if err != nil {
		return err
	}
	return tracer.Run(tids...)
}

// ReleaseTimeout bounds how long a traced thread may take to stop. If it takes longer, the kernel lets
// go of it when this program ends.
const ReleaseTimeout = 30 * time.Second

// ReleaseThreads puts the threads that a tracer let run back into the group-stop of their processes.
func ReleaseThreads(ctx context.Context, tracer *inject.Tracer, targets []*Target) error {
	ctx, cancel := context.WithTimeout(ctx, ReleaseTimeout)
	defer cancel()
	if err := tracer.Release(ctx); err != nil {
		return err
	}
	return proc.KeepStopped(ctx, ProcessesOf(targets)...)
}

// Borrow borrows up to most threads of a stopped process, but not the thread except, and notes them in
// the file saved.
func Borrow(ctx context.Context, s *session.Session, t *Target, most, except int, saved string) (*inject.Borrowed, error) {
	tids, err := proc.Threads(t.PID)
	if err != nil {
		return nil, err
	}
	var lent []int
	for _, tid := range tids {
		if tid != except && len(lent) < most {
			lent = append(lent, tid)
		}
	}
	for {
		borrowed, err := inject.Borrow(ctx, t.PID, lent, saved)
		if !errors.Is(err, inject.ErrNotStopped) || ctx.Err() != nil {
			return borrowed, err
		}
		// Somebody has continued it.
		if err := t.requireHeld(); err != nil {
			return nil, err
		}
		if err := proc.KeepStopped(ctx, t.Process); err != nil {
			return nil, err
		}
	}
}

// CoresEach is how many threads work for each process. One process gets all cores. Several processes
// together get twice as many threads, because they do not begin together.
func (s *Suspension) CoresEach() int { return coresFor(len(s.Targets)) }

// mostCores is the largest number of threads that gain something for one process. A fill by 8, 16 and
// 32 threads was measured at 15, 23 and 31 GB/s.
const mostCores = 32

func coresFor(processes int) int {
	cores := runtime.NumCPU()
	return min(cores, mostCores, max(2, 2*cores/max(processes, 1)))
}

// fillsAtOnce is how many processes are filled in at once: few, so that the driver has the first soon,
// but enough to give work to the cores that one process cannot use.
func fillsAtOnce() int { return max(1, runtime.NumCPU()/mostCores) }

// Parallel does one step for all targets at once and waits for every one of them, whatever the others
// return.
func Parallel(targets []*Target, do func(*Target) error) error {
	return ParallelUpTo(len(targets), len(targets), func(i int) error { return do(targets[i]) })
}

// ParallelUpTo is [proc.AtOnce] for a step that may fail.
func ParallelUpTo(most, n int, do func(i int) error) error {
	errs := make([]error, n)
	proc.AtOnce(most, n, func(i int) { errs[i] = do(i) })
	return errors.Join(errs...)
}
