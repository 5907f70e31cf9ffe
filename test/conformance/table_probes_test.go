package conformance

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"cucriu/internal/testenv"
)

// probeCases are about what is not known yet. They never fail; they print what happens.
func probeCases() []testCase {
	return []testCase{
		{
			name: "probe, stopped, all threads traced", probe: true,
			rows: []row{
				{name: "Lock(2000)", from: running, given: func(b *bench) error {
					if err := b.stop(); err != nil {
						return err
					}
					return b.traceAll()
				}, call: lock(2 * time.Second), to: locked},
				{name: "Unlock", call: unlock, to: running},
			},
		},
		{
			name: "probe, controller killed that traces too", probe: true,
			with: program{mib: staging},
			rows: []row{
				{name: "Checkpoint", from: locked, given: stopped(false), do: killedWithTracer(checkpoint, checkpointed)},
				{name: "then Restore", call: restore, to: locked},
				{name: "then Unlock", call: unlock, to: running},
			},
		},
		{
			name: "probe, controller killed that traces too, restore", probe: true,
			with: program{mib: staging},
			rows: []row{
				{name: "Restore", from: checkpointed, given: stopped(false), do: killedWithTracer(restore, locked)},
				{name: "then Restore once more", call: restore, to: locked},
				{name: "then Unlock", call: unlock, to: running},
			},
		},
		{
			name: "probe, memory", probe: true,
			with: program{mib: staging},
			rows: []row{{name: "NVML's figure and what Checkpoint frees", from: locked, do: freedMemory}},
		},
		{
			name: "probe, GetState meanwhile", probe: true,
			with: program{mib: staging},
			rows: []row{
				{name: "another controller's Checkpoint", from: locked, do: askedMeanwhile(checkpoint)},
				{name: "another controller's Restore", from: checkpointed, do: askedMeanwhile(restore)},
			},
		},
		{
			name: "probe, two controllers lock at once", probe: true,
			rows: []row{{name: "idle target", from: running, do: twoLocks}},
		},
		{
			name: "probe, two controllers lock at once, GPU busy", probe: true,
			with: program{args: []string{"--busy-ms", "400", "--tick-ms", "0"}},
			rows: []row{{name: "busy target", from: running, given: atTick, do: twoLocks}},
		},
		{
			// In a process of its own, because nobody knows whether it survives.
			name: "probe, reserved byte set", probe: true,
			rows: []row{
				{name: "Lock", from: running, do: elsewhere(opLock, reservedByte)},
				{name: "Checkpoint", from: locked, do: elsewhere(opCheckpoint, reservedByte)},
				{name: "Restore", from: checkpointed, do: elsewhere(opRestore, reservedByte)},
				{name: "Restore, one pair at NULL", from: checkpointed, do: elsewhere(opRestore, func() *arguments { return &arguments{pairCount: 1} })},
				{name: "Unlock", from: locked, do: elsewhere(opUnlock, reservedByte)},
			},
		},
	}
}

// killedWithTracer kills, in the middle of a call, a controller that traces the restore
// thread of the stopped target. The thread falls back into the group-stop in the middle of
// its work. Then another tracer lets it run again.
func killedWithTracer(c call, end state) func(*bench) (string, error) {
	return func(b *bench) (string, error) {
		pid, err := b.main()
		if err != nil {
			return "", err
		}
		tid, err := b.restoreThread()
		if err != nil {
			return "", err
		}
		defer b.slow(c.name())()
		k, err := b.newController(c, pid, true)
		if err != nil {
			return "", err
		}
		if err := k.proceed(); err != nil {
			return "", err
		}
		time.Sleep(b.midway(c.op))
		if err := k.kill(); err != nil {
			return "", err
		}
		said := []string{fmt.Sprintf("killed after %v", b.midway(c.op))}
		begun := time.Now()
		for testenv.ThreadStates(b.t, pid)[tid] != 'T' && time.Since(begun) < 5*time.Second {
			time.Sleep(time.Millisecond / 2)
		}
		said = append(said, fmt.Sprintf("thread %c after %s", testenv.ThreadStates(b.t, pid)[tid], millis(time.Since(begun))))
		question := b.begin(getState, pid)
		if a, answered := question.wait(time.Second); answered {
			said = append(said, fmt.Sprintf("GetState says %d %v after %s", uint32(a.result), stateOf(a.out), millis(a.took)))
		} else {
			said = append(said, "GetState blocks")
		}
		if err := b.trace(); err != nil {
			return strings.Join(said, ", "), err
		}
		begun = time.Now()
		said = append(said, "traced again")
		for last := anyState; time.Since(begun) < 10*time.Second; time.Sleep(5 * time.Millisecond) {
			is, err := b.state(pid)
			if err != nil {
				return strings.Join(said, ", "), err
			}
			if is != last {
				said = append(said, fmt.Sprintf("%v at %s", is, millis(time.Since(begun))))
			}
			if last = is; is == end || is == gone {
				break
			}
		}
		return strings.Join(said, ", "), nil
	}
}

// freedMemory compares the memory that NVML reports for a process with what its checkpoint
// frees.
func freedMemory(b *bench) (string, error) {
	pid, err := b.main()
	if err != nil {
		return "", err
	}
	ctx, cancel := within(patience)
	defer cancel()
	held, err := b.driver.ProcessMemory(ctx, pid)
	if err != nil {
		return "", err
	}
	before, err := b.memory()
	if err != nil {
		return "", err
	}
	if err := b.must(checkpoint, pid); err != nil {
		return "", err
	}
	after, err := b.memory()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("device memory %d MiB, NVML says %d MiB, freed %d MiB", b.stagingMiB, held[b.gpus[0].UUID]>>20, after-before), nil
}

// askedMeanwhile makes a call again and again while a call of another controller is under
// way.
func askedMeanwhile(c call) func(*bench) (string, error) {
	return func(b *bench) (string, error) {
		pid, err := b.main()
		if err != nil {
			return "", err
		}
		defer b.slow(c.name())()
		k, err := b.newController(c, pid, false)
		if err != nil {
			return "", err
		}
		if err := k.proceed(); err != nil {
			return "", err
		}
		begun := time.Now()
		time.Sleep(b.midway(c.op))
		thread, err := b.ask(getThread, pid)
		if err != nil {
			return "", err
		}
		said := []string{"GetRestoreThreadId " + thread.String()}
		for time.Since(begun) < patience {
			at := time.Since(begun)
			a, err := b.ask(getState, pid)
			if err != nil {
				return "", err
			}
			text := fmt.Sprintf("GetState at %s: %d %v after %s", millis(at), uint32(a.result), stateOf(a.out), millis(a.took))
			if len(said) < 4 {
				said = append(said, text)
			}
			other, err := k.answer(0)
			if errors.Is(err, errSilent) {
				time.Sleep(50 * time.Millisecond)
				continue
			}
			if err != nil {
				return strings.Join(said, ", "), err
			}
			return strings.Join(append(said, "the call "+other.String()), ", "), nil
		}
		return strings.Join(said, ", "), errors.New("the other call does not return")
	}
}

// twoLocks lets two processes lock a target at the same time.
func twoLocks(b *bench) (string, error) {
	pid, err := b.main()
	if err != nil {
		return "", err
	}
	var controllers [2]*controller
	for i := range controllers {
		if controllers[i], err = b.newController(lock(5*time.Second), pid, false); err != nil {
			return "", err
		}
	}
	for _, k := range controllers {
		if err := k.proceed(); err != nil {
			return "", err
		}
	}
	var said []string
	for _, k := range controllers {
		a, err := k.answer(patience)
		if err != nil {
			return strings.Join(said, ", "), err
		}
		said = append(said, a.String())
	}
	is, err := b.state(pid)
	return strings.Join(append(said, "then "+is.String()), ", "), err
}

// elsewhere lets another process make a call.
func elsewhere(o op, args func() *arguments) func(*bench) (string, error) {
	return func(b *bench) (string, error) {
		pid, err := b.main()
		if err != nil {
			return "", err
		}
		k, err := b.newController(call{op: o, args: args}, pid, false)
		if err != nil {
			return "", err
		}
		if err := k.proceed(); err != nil {
			return "", err
		}
		a, err := k.answer(patience)
		if err != nil {
			return "", err
		}
		is, err := b.state(pid)
		return fmt.Sprintf("%d %v", uint32(a.result), is), err
	}
}
