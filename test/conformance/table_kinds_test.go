package conformance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/nvrm"
	"cucriu/internal/testenv"
)

// kindCases have a program for each kind of memory and object, and for each leftover that a
// process can have.
func kindCases() []testCase {
	// In each of these cases the target compares all of its data after coming back, through
	// every context that can reach it.
	whole := func(name string, with program) testCase {
		c := testCase{name: name, with: with, rows: []row{
			{from: locked, call: checkpoint, want: results(success), to: checkpointed},
			{call: restore, want: results(success), to: locked},
		}}
		if slices.Contains(with.args, "0,1") {
			c.gpus, c.with.sees = 2, "AB"
		}
		return c
	}
	memory := func(kind string, more ...string) program {
		return program{args: append([]string{"--memory", kind}, more...)}
	}
	own := func(flag string) program { return program{own: true, args: []string{flag}} }
	// Cases in which nothing says that the target does not come back.
	holding := func(c testCase) testCase {
		c.rows = append([]row{holds(nvrm.Holdings{})}, c.rows...)
		return c
	}
	refused := func(name, when string) testCase {
		return testCase{name: name, with: program{cupti: true, args: []string{"--profiler", when}}, rows: []row{
			{from: running, call: lock(patience), want: results(notSupported), to: running, atMost: atOnce},
		}}
	}
	return []testCase{
		whole("cuMemAlloc, two GPUs", program{args: []string{"--gpus", "0,1"}, ballast: 16}),
		holding(whole("VMM", memory("vmm"))),
		whole("VMM, two GPUs", memory("vmm", "--gpus", "0,1")),
		whole("VMM, exported, descriptor open", memory("vmm-fd")),
		whole("VMM, exported, descriptor closed", memory("vmm-fd-closed")),
		whole("VMM, gpuDirectRDMACapable", memory("vmm-rdma")),
		whole("pool", memory("pool")),
		whole("pool, exportable", memory("pool-fd")),
		whole("pool, two GPUs", memory("pool", "--gpus", "0,1")),
		holding(whole("pinned host memory", program{args: []string{"--pinned"}})),
		whole("registered host memory", program{args: []string{"--registered"}}),
		whole("IPC handles taken, never opened", program{args: []string{"--ipc-handles"}}),
		whole("array", own("--array")),
		whole("green context", own("--green")),
		{
			// One GPU is enough.
			name: "VMM in host NUMA memory", lost: true,
			with: memory("host-numa"),
			rows: []row{
				holds(nvrm.Holdings{HostNUMA: 1}),
				{from: locked, call: checkpoint, want: results(success), to: checkpointed},
				{call: restore, want: results(unknownError), to: checkpointed},
				{name: "Restore, for ever", call: restore, want: results(noProcess), to: checkpointed},
			},
		},
		refused("profiled by CUPTI", "on"),
		refused("profiled by CUPTI before", "ended"),
		{
			name: "forked child that keeps the driver's descriptors",
			with: program{mib: staging, args: []string{"--fork-child"}},
			rows: []row{
				{name: "Checkpoint frees the memory that the child still holds", from: locked, do: checkpointFrees, text: "all of it", to: checkpointed},
				{call: restore, want: results(success), to: locked},
			},
		},
		{
			name: "forked child that gives them up",
			with: program{args: []string{"--fork-child"}},
			rows: []row{
				{name: "descriptors and mappings of /dev/nvidia* in the child", from: running, do: childGivesUp, text: "none"},
				{from: locked, call: checkpoint, want: results(success), to: checkpointed},
				{call: restore, want: results(success), to: locked},
				{name: "the child leaves by exit()", do: childExits, text: "status 0"},
			},
		},
	}
}

// cupti returns the folder of a libcupti.so.
func (b *bench) cupti() (string, error) {
	places := []string{
		filepath.Dir(b.driver.Library()), "/usr/local/cuda*/extras/CUPTI/lib64", "/usr/local/cuda*/lib64",
		"/opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib",
	}
	for _, place := range places {
		if found, _ := filepath.Glob(filepath.Join(place, "libcupti.so.1[0-9]")); len(found) > 0 {
			return filepath.Dir(found[0]), nil
		}
	}
	return "", notHere("no libcupti on this machine")
}

// checkpointFrees compares the free memory before and after a checkpoint.
func checkpointFrees(b *bench) (string, error) {
	pid, err := b.main()
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
	if after-before < b.stagingMiB {
		return fmt.Sprintf("%d of %d MiB", after-before, b.stagingMiB), nil
	}
	return "all of it", nil
}

func childGivesUp(b *bench) (string, error) {
	pid, err := forkedChild(b)
	if err != nil {
		return "", err
	}
	if err := unix.Kill(pid, unix.SIGUSR1); err != nil {
		return "", err
	}
	err = b.targets[0].wait(patience, "the child gives up the driver's descriptors and mappings", func() bool {
		held, readErr := childDescriptors(b)
		mapped, mapsErr := childMappings(b)
		return errors.Join(readErr, mapsErr) == nil && held == "none" && mapped == "none"
	})
	if err == nil && testenv.ThreadStates(b.t, pid)[pid] == 'Z' {
		err = errors.New("the child has ended")
	}
	return "none", err
}

// childExits lets the child exit while its parent is locked, and reads the exit status of
// the zombie.
func childExits(b *bench) (string, error) {
	pid, err := forkedChild(b)
	if err != nil {
		return "", err
	}
	if err := unix.Kill(pid, unix.SIGUSR2); err != nil {
		return "", err
	}
	var fields []string
	err = b.targets[0].wait(patience, "the child ends", func() bool {
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, rest, _ := strings.Cut(string(data), ") ")
		fields = strings.Fields(rest)
		return len(fields) == 50 && fields[0] == "Z"
	})
	if err != nil {
		return "", err
	}
	return "status " + fields[49], nil
}
