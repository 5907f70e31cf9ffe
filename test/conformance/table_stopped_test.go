package conformance

import "time"

// stoppedCases show that the driver works through one thread of the target, and waits for
// ever while that thread is stopped.
func stoppedCases() []testCase {
	const short = 200 * time.Millisecond
	resume := (*bench).resume
	// Work that is in flight when the target is stopped may outlast the timeout.
	blocked := func(given, free func(*bench) error) []row {
		return []row{
			{from: running, given: given, call: getThread, want: results(success), atMost: atOnce, then: free},
			{from: running, given: given, call: getState, want: results(success), to: running, blocks: true, free: free},
			{from: running, given: given, call: lock(short), want: results(success, notReady), blocks: true, free: free},
			{from: running, given: given, call: lock(0), want: results(success), to: locked, blocks: true, free: free},
			{from: locked, given: given, call: unlock, want: results(success), to: running, blocks: true, free: free},
			{from: locked, given: given, call: checkpoint, want: results(success), to: checkpointed, blocks: true, free: free},
			{from: checkpointed, given: given, call: restore, want: results(success), to: locked, blocks: true, free: free},
		}
	}
	return []testCase{
		{name: "stopped", rows: blocked(stopped(false), resume)},
		{name: "frozen", rows: blocked((*bench).freeze, (*bench).thaw)},
		{
			// A lock needs more of the target than its restore thread.
			name: "stopped before the lock",
			rows: []row{
				{name: "Lock(200), the restore thread alone traced", from: running, given: stopped(true), call: lock(short), want: results(success, notReady), blocks: true, free: func(b *bench) error {
					if err := b.release(); err != nil {
						return err
					}
					return b.resume()
				}},
			},
		},
		{name: "dump order, plain", rows: dumpOrder()},
		{name: "dump order, cuStreamSynchronize spins", with: program{args: []string{"--spin", "stream-sync"}}, rows: dumpOrder()},
		{name: "dump order, cuStreamQuery spins", with: program{args: []string{"--spin", "stream-query"}}, rows: dumpOrder()},
		{
			name: "tracer killed",
			rows: []row{
				{name: "the thread falls back into the group-stop", from: locked, given: stopped(false), do: killedTracer, text: "all stopped"},
				{name: "traced again: Checkpoint", given: (*bench).trace, call: checkpoint, want: results(success), to: checkpointed},
				{call: restore, want: results(success), to: locked},
				{call: unlock, want: results(success), to: running},
			},
		},
	}
}

// dumpOrder is what a dump and a restore do: lock the running process, stop it, trace the
// restore thread, checkpoint, release the thread; and then the way back. That is not quite
// the reverse: unlock may wait for any thread that was stopped inside the driver
// (TestAProcessIsServedAtWhateverInstructionItWasStopped), so all threads run by then.
func dumpOrder() []row {
	letGo := row{name: "released: all threads in the group-stop", do: func(b *bench) (string, error) {
		if err := b.release(); err != nil {
			return "", err
		}
		return "all stopped", othersStopped(true)(b)
	}, text: "all stopped"}
	return []row{
		{name: "traced: Checkpoint", from: locked, given: stopped(true), call: checkpoint, want: results(success), to: checkpointed, then: othersStopped(false)},
		letGo,
		{name: "GetRestoreThreadId", call: getThread, want: results(success), atMost: atOnce},
		{name: "traced again: Restore", given: (*bench).trace, call: restore, want: results(success), to: locked, then: othersStopped(false)},
		letGo,
		{name: "GetState, until SIGCONT", call: getState, want: results(success), to: locked, blocks: true},
		{name: "Unlock, every thread running", call: unlock, want: results(success), to: running},
	}
}

// killedTracer lets another process trace the restore thread, and kills that process.
func killedTracer(b *bench) (string, error) {
	pid, err := b.main()
	if err != nil {
		return "", err
	}
	k, err := b.newController(getThread, pid, true)
	if err != nil {
		return "", err
	}
	if err := othersStopped(false)(b); err != nil {
		return "", err
	}
	if err := k.kill(); err != nil {
		return "", err
	}
	return "all stopped", othersStopped(true)(b)
}

// hazardCases are about what CPU threads must not do while their process is checkpointed.
func hazardCases() []testCase {
	dies := func(mode string) testCase {
		return testCase{
			name: "hazard, " + mode, lost: true,
			with: program{args: []string{"--spin", mode}},
			rows: []row{
				// The thread may be faster than the call's answer.
				{from: locked, call: checkpoint, want: results(success, noProcess), to: gone},
				{name: "the end", do: func(b *bench) (string, error) { return b.targets[0].end(), nil }, text: "killed by SIGSEGV"},
			},
		}
	}
	return []testCase{
		dies("stream-sync"), dies("event-sync"), dies("ctx-sync"), dies("stream-query"),
		{
			name: "hazard, event-query", lost: true, probe: true,
			with: program{args: []string{"--spin", "event-query"}},
			rows: []row{{name: "Checkpoint, and 2 s later", from: locked, do: func(b *bench) (string, error) {
				pid, err := b.main()
				if err != nil {
					return "", err
				}
				a, err := b.ask(checkpoint, pid)
				b.targets[0].waitEnd(2 * time.Second)
				end := b.targets[0].end()
				if end == "" {
					end = "lives"
				}
				return a.String() + ", " + end, err
			}}},
		},
		{
			name: "hazard, thread that launches first",
			rows: []row{{name: "half a second later", from: checkpointed, do: func(b *bench) (string, error) {
				if b.targets[0].waitEnd(500 * time.Millisecond) {
					return b.targets[0].end(), nil
				}
				return "lives", nil
			}, text: "lives"}},
		},
	}
}
