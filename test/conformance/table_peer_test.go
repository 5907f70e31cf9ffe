package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"cucriu/internal/kit/nvrm"
)

// peerCases are about GPUs of one process that access one another's memory. The driver
// gives an allocation of 512 MiB or more a fabric object through which other GPUs reach it.
// A restore loses these objects.
func peerCases() []testCase {
	with := func(ballast, handle int, args ...string) program {
		return program{sees: "AB", ballast: ballast, handle: handle, args: append([]string{"--gpus", "0,1"}, args...)}
	}
	whole := func(name string, p program, rows ...row) testCase {
		return testCase{name: "peer access, " + name, gpus: 2, with: p, rows: append([]row{
			{from: locked, call: checkpoint, want: results(success), to: checkpointed},
			{call: restore, want: results(success), to: locked},
		}, rows...)}
	}
	const one, both = "one", "both"
	lost := func(name string, p program, first call) testCase {
		return testCase{name: "peer access, " + name, gpus: 2, lost: true, with: p, rows: []row{
			{from: locked, call: checkpoint, want: results(success), to: checkpointed},
			{call: first, want: results(invalidValue), to: checkpointed},
			{name: "Restore, for ever", call: restore, want: results(noProcess), to: checkpointed},
			{name: "Restore(A>A B>B), for ever", call: restoreMap("A>A B>B"), want: results(noProcess), to: checkpointed},
			{name: "Restore(A>B B>A), for ever", call: restoreMap("A>B B>A"), want: results(noProcess), to: checkpointed},
			{name: "Restore, one GPU hidden", given: show("A"), call: restore, want: results(notSupported), to: checkpointed},
			{name: "Restore, both back", given: show("AB"), call: restore, want: results(noProcess), to: checkpointed},
			refused(checkpointed, unlock),
		}}
	}
	// Peer access is taken away before the lock, or not requested before the restore.
	again := func(name string, p program, want string, before ...row) testCase {
		return testCase{name: "peer access, " + name, gpus: 2, with: p, rows: append(before,
			row{from: locked, call: checkpoint, want: results(success), to: checkpointed},
			row{call: restore, want: results(success), to: locked},
			row{name: "given to it afterwards", from: running, do: peer("on"), text: want},
		)}
	}
	off := row{name: "taken away", from: running, do: peer("off"), text: "0"}

	holding := func(h nvrm.Holdings, c testCase) testCase {
		c.rows = append([]row{holds(h)}, c.rows...)
		return c
	}
	swapped := whole("small, moved", with(0, 0, "--peer", both))
	swapped.rows[1].call, swapped.endsOn, swapped.busOf = restoreMap("A>B B>A"), "BA", "AB"
	return []testCase{
		whole("one way, small", with(0, 0, "--peer", one)),
		holding(nvrm.Holdings{PeerAccess: 1}, whole("both ways, small", with(0, 0, "--peer", both))),
		swapped,
		whole("8 allocations of an eighth", with(1, 0, "--peer", both, "--ballast-pieces", "8")),
		whole("4 allocations of six eighths", with(6, 0, "--peer", both, "--ballast-pieces", "4")),
		holding(nvrm.Holdings{PeerAccess: 1}, whole("VMM, handles of a half in one reservation of two", with(16, 4, "--peer", both, "--memory", "vmm"))),
		holding(nvrm.Holdings{PeerAccess: 1, Fabric: 2, FabricShared: 2}, lost("one allocation of 512 MiB", with(8, 0, "--peer", both), restore)),
		holding(nvrm.Holdings{PeerAccess: 1, Fabric: 2, FabricShared: 1}, lost("one allocation of 512 MiB, one way", with(8, 0, "--peer", one), restore)),
		lost("one allocation of 1 GiB, moved", with(16, 0, "--peer", both), restoreMap("A>B B>A")),
		holding(nvrm.Holdings{PeerAccess: 1, Fabric: 2, FabricShared: 2}, lost("one VMM handle of 512 MiB", with(8, 0, "--peer", both, "--memory", "vmm"), restore)),
		lost("VMM, handles of 512 MiB in one reservation", with(16, 8, "--peer", both, "--memory", "vmm"), restoreMap("A>A B>B")),
		again("512 MiB, taken away before", with(8, 0, "--peer", both), "400", off),
		again("VMM of 512 MiB, taken away before", with(8, 0, "--peer", both, "--memory", "vmm"), "400", off),
		again("pool, taken away before", with(8, 0, "--peer", both, "--memory", "pool"), "1", off),
		again("small, taken away before", with(0, 0, "--peer", both), "0", off),
		again("small, not before", with(0, 0, "--peer", both, "--peer-later"), "0"),
		holding(nvrm.Holdings{Fabric: 2}, again("512 MiB, not before", with(8, 0, "--peer", both, "--peer-later"), "400")),
		{
			// Nothing shows it before the other GPU touches the memory.
			name: "peer access to a pool", gpus: 2, lost: true,
			with: with(0, 0, "--peer", both, "--memory", "pool"),
			rows: []row{
				holds(nvrm.Holdings{PeerAccess: 1, Pools: 2}),
				{from: locked, call: checkpoint, want: results(success), to: checkpointed},
				{call: restore, want: results(success), to: locked},
				{call: unlock, want: results(success, noProcess)}, // the process may end before unlock has returned
				{name: "the other GPU's next access", do: ends, text: "700 or 719"},
			},
		},
	}
}

// holds is the row that asks the kernel module what the target holds.
func holds(want nvrm.Holdings) row {
	text := func(h nvrm.Holdings) string { return strings.Trim(fmt.Sprintf("%+v", h), "{}") }
	return row{
		name: "what the kernel module says of it", from: running, text: text(want),
		do: func(b *bench) (string, error) {
			pid, err := b.main()
			if err != nil {
				return "", err
			}
			answer := nvrm.Ask(b.driver.Ioctl(), []int{pid}, []int{nvrm.WidestGap}, nil)
			if answer.Holdings[pid] == nil {
				return "", fmt.Errorf("not all of it was found: %w", answer.Err)
			}
			got := *answer.Holdings[pid]
			got.MemoryBytes = 0
			if want.HostNUMA == 0 {
				got.HostNUMA = 0 // it is meaningless for a process on two GPUs
			}
			return text(got), nil
		},
	}
}

// peer makes the target disable or enable peer access, and returns the driver's answer.
func peer(what string) func(*bench) (string, error) {
	return func(b *bench) (string, error) {
		t := b.targets[0]
		request, answer := filepath.Join(t.dir, "peer"), filepath.Join(t.dir, "peered")
		if err := os.WriteFile(request+".tmp", []byte(what), 0o600); err != nil {
			return "", err
		}
		if err := os.Rename(request+".tmp", request); err != nil {
			return "", err
		}
		err := t.wait(patience, "it answers "+request, func() bool {
			_, err := os.Stat(request)
			return errors.Is(err, fs.ErrNotExist)
		})
		if err != nil {
			return "", err
		}
		data, err := os.ReadFile(answer)
		if err != nil {
			return "", err
		}
		var said struct{ Result int }
		if err := json.Unmarshal(data, &said); err != nil {
			return "", err
		}
		return fmt.Sprint(said.Result), t.whole(patience)
	}
}

// ends reports whether the target ends because one of its GPUs could not reach memory.
func ends(b *bench) (string, error) {
	t := b.targets[0]
	if !t.waitEnd(patience) {
		return "lives", nil
	}
	end := t.end()
	for _, code := range []string{"(700)", "(719)"} { // from a kernel, from a copy
		if strings.Contains(end, code) {
			return "700 or 719 " + code, nil
		}
	}
	return end, nil
}
