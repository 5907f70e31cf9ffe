// Command serial-hook is an action script for benchmarks only: the baseline for
// comparisons. Like criu's CUDA plugin with NVIDIA's cuda-checkpoint, it makes one driver
// call after the other, each in a process of its own that first loads the driver. If
// something fails, it undoes nothing, and nothing watches over the job. Never use it for a
// job that matters.
//
// pre-dump asks every process of the tree for its restore thread, which tells whether the
// process uses CUDA. It locks those that do, one after the other, and then stops and
// checkpoints them, one after the other. pre-resume queues a SIGSTOP for every process of
// the tree. post-resume restores, continues and unlocks one process after the other.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"
)

// timeout is the time limit for a stage. No benchmark has more GPU memory than can be moved
// in that time.
const timeout = 10 * time.Minute

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "serial-hook: error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if len(args) > 0 {
		return help(ctx, args)
	}
	stages := map[string]func(ctx context.Context, root int) error{"pre-dump": preDump, "pre-resume": preResume, "post-resume": postResume}
	stage := os.Getenv("CRTOOLS_SCRIPT_ACTION")
	do := stages[stage]
	if do == nil {
		return nil
	}
	root, err := strconv.Atoi(os.Getenv("CRTOOLS_INIT_PID"))
	if err != nil {
		return fmt.Errorf("CRTOOLS_INIT_PID at stage %s: %w", stage, err)
	}
	return do(ctx, root)
}
