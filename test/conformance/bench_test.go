package conformance

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

const (
	startTime  = testenv.Soon           // until a target computes: the first cuInit of a machine is slow
	patience   = testenv.Soon           // for what takes at most a few seconds
	blockTime  = 700 * time.Millisecond // a call that has not returned by then blocks
	atOnce     = 500 * time.Millisecond // for what takes a millisecond, on a busy machine
	slowOnSim  = 3 * time.Second        // how long the simulated driver makes an operation take
	hurriedGap = 20 * time.Millisecond
)

// bench is where a case is measured.
type bench struct {
	t          *testing.T // of the case
	host       *testenv.Host
	driver     *cudackpt.Driver
	calls      *driverCalls
	spawner    spawner
	gpus       []cudackpt.GPU // A and, if there are two GPUs, B
	root       string         // the folder that holds dev
	dir        string
	self       string
	cudawork   string
	real       bool
	stagingMiB int // the memory of targets with much memory
	slackMiB   int // what the memory hog of the out-of-memory case leaves
	eighthMiB  int // see program.ballast

	// Of one case:
	targets []*target
	tracer  *inject.Tracer
	freezer *freezer
	undo    []func()
	pending []*pending
}

// errStuck says that a call did not return within patience.
var errStuck = fmt.Errorf("not returned within %v", patience)

// notHere says that this machine cannot provide a circumstance.
type notHere string

func (reason notHere) Error() string { return string(reason) }

// within returns a context for what must end soon.
func within(timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), timeout)
}

// main returns the pid of the target that a case is about.
func (b *bench) main() (int, error) {
	if len(b.targets) == 0 {
		return 0, errors.New("no target")
	}
	return b.targets[0].process(0)
}

// process returns another CUDA process of the target.
func process(i int) func(*bench) (int, error) {
	return func(b *bench) (int, error) { return b.targets[0].process(i) }
}

// second returns the second target of a case.
func second(b *bench) (int, error) { return b.targets[1].process(0) }

// pending is a call that is under way. It cannot be interrupted.
type pending struct {
	answer chan answer
	begun  time.Time
}

// answer is the result of a call.
type answer struct {
	result cudackpt.Result
	out    uint32
	took   time.Duration
}

func (a answer) String() string { return fmt.Sprintf("%d after %s", uint32(a.result), millis(a.took)) }

func millis(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

// begin makes a call on a goroutine of its own.
func (b *bench) begin(c call, pid int) *pending {
	var args *arguments
	var pairs []uuidPair
	if c.args != nil {
		args = c.args()
	}
	if c.pairs != nil {
		pairs = c.pairs(b)
	}
	b.calm(c, pid)
	p := &pending{answer: make(chan answer, 1), begun: time.Now()}
	b.pending = append(b.pending, p)
	go func() {
		begun := time.Now()
		result, out := b.calls.call(c.op, int32(pid), args, pairs)
		p.answer <- answer{result, out, time.Since(begun)}
	}()
	return p
}

// calm lets the threads of a running target come to their next launch, which the lock holds
// back, before a checkpoint. On a busy machine a thread may have launched before the lock
// and reach its synchronizing call only now, and that would kill it.
func (b *bench) calm(c call, pid int) {
	if c.op == opCheckpoint {
		b.awaitCalm(pid)
	}
}

// awaitCalm waits, but not for long, until no thread of a target computes, or waits for a processor or a
// disk. Threads that spin never get there.
func (b *bench) awaitCalm(pid int) {
	if slices.ContainsFunc(b.targets, func(t *target) bool { return slices.Contains(t.args, "--spin") }) {
		return
	}
	const enough = 5 // looks, between which a thread may have slept for a moment
	for calm, looks := 0, 0; calm < enough && looks < 600; looks++ {
		if calm++; isBusy(pid) {
			calm = 0
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// isBusy reports whether a thread of a process computes, or waits for a processor or a disk.
func isBusy(pid int) bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	return slices.ContainsFunc(stats, func(stat string) bool {
		data, _ := os.ReadFile(stat)
		state, _, _ := strings.Cut(strings.TrimSpace(string(data[bytes.LastIndexByte(data, ')')+1:])), " ")
		return state == "R" || state == "D"
	})
}

// wait returns the answer, or false if there is none within the time. It can be called
// again.
func (p *pending) wait(timeout time.Duration) (answer, bool) {
	select {
	case a := <-p.answer:
		p.answer <- a
		return a, true
	case <-time.After(timeout):
		return answer{}, false
	}
}

// ask makes a call that should not block.
func (b *bench) ask(c call, pid int) (answer, error) {
	a, ok := b.begin(c, pid).wait(patience)
	if !ok {
		return a, fmt.Errorf("%s of %d: %w", c.text, pid, errStuck)
	}
	return a, nil
}

// must makes a call that must succeed.
func (b *bench) must(c call, pid int) error {
	a, err := b.ask(c, pid)
	if err == nil && a.result != success {
		err = fmt.Errorf("%s: %w", c.text, a.result)
	}
	return err
}

// state asks for the state of a process.
func (b *bench) state(pid int) (state, error) {
	a, err := b.ask(getState, pid)
	switch {
	case err != nil:
		return anyState, err
	case a.result == noProcess:
		return gone, nil
	case a.result != success:
		return anyState, fmt.Errorf("GetState: %w", a.result)
	}
	return stateOf(a.out), nil
}

// bring brings a process into a state by legal calls.
func (b *bench) bring(pid int, want state) error {
	for range 4 {
		is, err := b.state(pid)
		if err != nil || is == want {
			return err
		}
		var next call
		switch {
		case is == running:
			next = lock(patience)
		case is == locked && want == checkpointed:
			next = checkpoint
		case is == locked:
			next = unlock
		case is == checkpointed:
			next = restore
		default:
			return fmt.Errorf("no way from %v to %v", is, want)
		}
		if err := b.must(next, pid); err != nil {
			return err
		}
	}
	return fmt.Errorf("it does not get to %v", want)
}

// stop stops the target and waits for its group-stop.
func (b *bench) stop() error {
	pid, err := b.main()
	if err != nil {
		return err
	}
	p, err := proc.Open(pid)
	if err != nil {
		return err
	}
	defer p.Close()
	// A thread that still synchronizes when it is locked returns and comes to the lock, and
	// nothing shows when. If it is stopped before that, a checkpoint kills it.
	time.Sleep(100 * time.Millisecond)
	b.awaitCalm(pid)
	ctx, cancel := within(patience)
	defer cancel()
	return proc.Stop(ctx, p)
}

// resume ends the group-stop.
func (b *bench) resume() error {
	pid, err := b.main()
	if err != nil {
		return err
	}
	return unix.Kill(pid, unix.SIGCONT)
}

// restoreThread returns the thread to trace.
func (b *bench) restoreThread() (int, error) {
	pid, err := b.main()
	if err != nil {
		return 0, err
	}
	a, err := b.ask(getThread, pid)
	if err == nil && a.result != success {
		err = fmt.Errorf("GetRestoreThreadId: %v", a.result)
	}
	return int(a.out), err
}

// trace lets only the restore thread run.
func (b *bench) trace() error {
	tid, err := b.restoreThread()
	if err != nil {
		return err
	}
	b.tracer = inject.NewTracer()
	return b.tracer.Run(tid)
}

// traceAll lets every thread of the target run.
func (b *bench) traceAll() error {
	pid, err := b.main()
	if err != nil {
		return err
	}
	tids, err := proc.Threads(pid)
	if err != nil {
		return err
	}
	b.tracer = inject.NewTracer()
	for _, tid := range tids {
		if err := b.tracer.Run(tid); err != nil {
			return err
		}
	}
	return nil
}

// release lets the traced threads fall back into the group-stop.
func (b *bench) release() error {
	if b.tracer == nil {
		return nil
	}
	tracer := b.tracer
	b.tracer = nil
	ctx, cancel := within(patience)
	defer cancel()
	return tracer.Release(ctx)
}

// othersStopped fails if a thread other than the restore thread can run. If
// restoreThreadToo is true, it also fails if the restore thread can run.
func othersStopped(restoreThreadToo bool) func(*bench) error {
	return func(b *bench) error {
		pid, err := b.main()
		if err != nil {
			return err
		}
		tid, err := b.restoreThread()
		if err != nil {
			return err
		}
		deadline := time.Now().Add(patience)
		for {
			runs := 0
			for thread, letter := range testenv.ThreadStates(b.t, pid) {
				if letter != 'T' && (restoreThreadToo || thread != tid) {
					runs = thread
				}
			}
			// A thread may take a moment to fall back into the group-stop; then it must
			// stay there.
			if runs == 0 || !restoreThreadToo || time.Now().After(deadline) {
				if runs != 0 {
					return fmt.Errorf("thread %d is not stopped", runs)
				}
				return nil
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// show changes which GPUs the target sees.
func show(letters string) func(*bench) error {
	return func(b *bench) error {
		pid, err := b.main()
		if err != nil {
			return err
		}
		return b.see(pid, letters)
	}
}

func (b *bench) see(pid int, letters string) error {
	if err := showOnly(pid, b.root, b.gpus, b.gpusOf(letters)); err != nil {
		return err
	}
	gpus, err := b.driver.VisibleGPUs(pid)
	if err == nil && len(gpus) != len(b.gpusOf(letters)) {
		err = fmt.Errorf("process %d sees %v, not %s", pid, gpus, letters)
	}
	return err
}

// slow makes an operation take a while: the simulated driver is told to, and for the real
// driver the target has much memory.
func (b *bench) slow(op string) func() {
	if b.real {
		return func() {}
	}
	b.host.Faults(fmt.Sprintf("%s delay %dms", op, slowOnSim.Milliseconds()))
	end := func() { _ = os.Remove(filepath.Join(b.host.Dir, "faults")) }
	b.undo = append(b.undo, end)
	return end
}

// midway returns when a slow operation is in its middle.
func (b *bench) midway(o op) time.Duration {
	switch {
	case !b.real:
		return slowOnSim / 4
	case o == opRestore: // 1 GiB takes some 200 ms
		return 50 * time.Millisecond
	}
	return 100 * time.Millisecond // some 500 ms
}

// freeze freezes the target in a freezer of its own.
func (b *bench) freeze() error {
	pid, err := b.main()
	if err != nil {
		return err
	}
	freezer, err := newFreezer("cucriu-conformance-" + strings.ToLower(rand.Text()))
	if err != nil {
		return err
	}
	b.freezer = freezer
	b.undo = append(b.undo, func() {
		_ = freezer.set(false)
		_ = unix.Kill(pid, unix.SIGKILL)
		freezer.remove()
	})
	if err := os.WriteFile(filepath.Join(freezer.dir, "cgroup.procs"), fmt.Append(nil, pid), 0); err != nil {
		return notHere("no control group takes the target: " + err.Error())
	}
	return freezer.set(true)
}

// thaw thaws the target.
func (b *bench) thaw() error { return b.freezer.set(false) }

// memory returns the free memory of GPU A in MiB.
func (b *bench) memory() (int, error) {
	ctx, cancel := within(patience)
	defer cancel()
	info, err := b.driver.Memory(ctx, b.gpus[0].UUID)
	return int(info.Free >> 20), err
}

// hog starts a second target that leaves too little memory on GPU A for the first one.
func hog(b *bench) error {
	free, err := b.memory()
	if err != nil {
		return err
	}
	// How much its context takes is not known beforehand, so the test asks for less and
	// less.
	for take := free - b.slackMiB; take > free/2; take -= b.slackMiB / 2 {
		_, err = b.startTarget(program{mib: take, args: []string{"--tick-ms", "2000"}})
		if err == nil {
			left, err := b.memory()
			if err == nil && left >= b.stagingMiB {
				err = fmt.Errorf("the hog left %d MiB, which are enough", left)
			}
			return err
		}
		if last := b.targets[len(b.targets)-1]; !strings.Contains(last.end(), "cuMemAlloc") {
			return err
		}
	}
	return fmt.Errorf("no hog fits: %w", err)
}

// unhog ends the second target and waits until its memory is free.
func unhog(b *bench) error {
	if err := b.targets[len(b.targets)-1].kill(); err != nil {
		return err
	}
	deadline := time.Now().Add(patience)
	for {
		free, err := b.memory()
		if err != nil || free > 2*b.stagingMiB {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("only %d MiB are free after the hog's end", free)
		}
		time.Sleep(hurriedGap)
	}
}

// atTick waits for the beginning of a tick of the target.
func atTick(b *bench) error {
	err := b.targets[0].waitTicks(1, patience)
	time.Sleep(hurriedGap) // until its kernel is on the GPU
	return err
}

// midTick waits for the beginning of a tick of several seconds, and on until its kernel is on the GPU
// although the machine is busy.
func midTick(b *bench) error {
	err := b.targets[0].waitTicks(1, patience)
	time.Sleep(time.Second)
	return err
}

// clear ends everything that a case has started.
func (b *bench) clear() {
	_ = b.release()
	for _, undo := range b.undo {
		undo()
	}
	for _, t := range b.targets {
		if err := t.kill(); err != nil {
			b.t.Error(err)
		}
	}
	for _, p := range b.pending {
		// When its target dies, every call ends.
		if _, ok := p.wait(patience); !ok {
			b.t.Error("a call is still under way although its target is dead")
		}
	}
	for _, t := range b.targets {
		_ = os.RemoveAll(t.dir)
	}
	b.targets, b.undo, b.pending = nil, nil, nil
}
