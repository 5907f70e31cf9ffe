package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"cucriu/cudackpt"
	"cucriu/internal/kit/inject"
)

// The calls that a helper makes. The call is its first argument.
const (
	callRestoreThread = "restore-thread"
	callLock          = "lock"
	callCheckpoint    = "checkpoint"
	callRestore       = "restore"
	callUnlock        = "unlock"
)

// askRestoreThread asks for the restore thread of a process, by a helper. It is 0 if the
// process does not use CUDA.
func askRestoreThread(ctx context.Context, pid int) (int, error) {
	out, err := helper(ctx, callRestoreThread, strconv.Itoa(pid))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(out))
}

// call makes one call on a process, by a helper.
func call(ctx context.Context, name string, m member) error {
	_, err := helper(ctx, name, strconv.Itoa(m.pid), strconv.Itoa(m.restoreThread))
	return err
}

// helper runs this program again for one call.
func helper(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("helper %v: %w", args, err)
	}
	return string(out), nil
}

// help is the program of a helper: CALL PID [RESTORE-THREAD].
func help(ctx context.Context, args []string) error {
	var numbers []int
	for _, arg := range args[1:] {
		number, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		numbers = append(numbers, number)
	}
	driver, err := cudackpt.Open(cudackpt.WithLibrary(os.Getenv("CUCRIU_LIBCUDA")), cudackpt.WithRoot(os.Getenv("CUCRIU_DRIVER_ROOT")))
	if err != nil {
		return err
	}
	process := driver.Process(numbers[0])
	switch args[0] {
	case callRestoreThread:
		tid, err := process.RestoreThreadID(ctx)
		if err != nil && !errors.Is(err, cudackpt.ResultNotInitialized) {
			return err
		}
		fmt.Println(tid)
		return nil
	case callLock:
		return process.Lock(ctx, cudackpt.LockOptions{})
	case callCheckpoint:
		return traced(ctx, numbers[1], func() error { return process.Checkpoint(ctx) })
	case callRestore:
		return traced(ctx, numbers[1], func() error { return process.Restore(ctx, cudackpt.RestoreOptions{}) })
	case callUnlock:
		return process.Unlock(ctx)
	}
	return fmt.Errorf("%s is no call: criu runs this as its action script, without arguments", args[0])
}

// traced makes a call while only the restore thread of the stopped process runs.
func traced(ctx context.Context, restoreThread int, call func() error) error {
	tracer := inject.NewTracer()
	err := tracer.Run(restoreThread)
	if err == nil {
		err = call()
	}
	return errors.Join(err, tracer.Release(ctx))
}
