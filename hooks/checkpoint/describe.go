package checkpoint

import (
	"context"
	"os"

	"cucriu/cudackpt"
	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
	"cucriu/internal/core/agent"
	"cucriu/internal/core/inspect"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/twice"
)

// What is asked here is for those who describe a job to another host before they dump it.

// Describe returns a process as an image of it would have it; nil if it does not use CUDA. It touches nothing. open
// opens the driver, and is called for a process that may use CUDA.
func Describe(ctx context.Context, pid int, open func() (*cudackpt.Driver, error)) (*image.Process, error) {
	found, err := inspect.One(ctx, pid, open)
	if err != nil || found.Process == nil {
		return nil, err
	}
	driver, err := open()
	if err != nil {
		return nil, err
	}
	measured := []inspect.Process{*found.Process}
	if err := inspect.Measure(ctx, driver, measured); err != nil {
		return nil, err
	}
	p := measured[0]
	return &image.Process{PID: p.PID, Name: p.Name, Stopped: p.Stopped, GPUs: p.GPUs, MemoryBytes: p.MemoryBytes}, nil
}

// HasLibrary reports whether a process is known to have the library of cucriu run --dir.
func HasLibrary(pid int) bool {
	process, err := proc.Open(pid)
	if err != nil {
		return false
	}
	defer process.Close()
	a, err := agent.Find(process)
	return err == nil && a != nil
}

// CriuOptions finds the options that criu needs to dump the tree below root, and what no option helps against. criu is
// the path of the criu that is to dump, empty if that is not known. noTerminal says that the tree does not use the
// terminal of its session. It changes nothing, and a tree may change until it is dumped.
func CriuOptions(ctx context.Context, root int, criu string, noTerminal bool) (image.Options, preflight.Findings, error) {
	advice, err := inventory.Advice(root)
	if advice == nil { // else what could not be read is left to criu
		return image.Options{}, nil, err
	}
	wanted, err := inspect.OptionsOf(ctx, advice, inspect.Asked{Criu: criu, NoTerminal: noTerminal})
	return wanted.Options, wanted.Findings, err
}

// CheckSurroundings finds what a job with these options is connected with and this host lacks: a terminal on the
// standard input, and UNIX sockets.
func CheckSurroundings(options image.Options) preflight.Findings {
	return inspect.SurroundingsFindings(options, os.Stdin)
}

// CheckPIDs finds who on this host has a number that a job needs: of a process, a thread, a process group or a
// session. It waits for those that are about to be free.
func CheckPIDs(ctx context.Context, numbers []int) (preflight.Findings, error) {
	return inspect.TakenPIDs(ctx, twice.Start{}, numbers, func(string) {})
}

// CheckProcess refuses a pid that is not one of a process that runs.
func CheckProcess(pid int) error {
	findings, err := inspect.ProcessFindings(pid)
	if err != nil {
		return err
	}
	return findings.Err()
}
