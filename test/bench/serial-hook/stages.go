package main

import (
	"context"

	"golang.org/x/sys/unix"

	"cucriu/internal/proc"
)

// member is a process of the tree that uses CUDA.
type member struct{ pid, restoreThread int }

// members asks every process of a tree for its restore thread, and returns those that use
// CUDA.
func members(ctx context.Context, root int) ([]member, error) {
	pids, err := proc.Tree(root)
	if err != nil {
		return nil, err
	}
	var found []member
	for _, pid := range pids {
		tid, err := askRestoreThread(ctx, pid)
		if err != nil {
			return nil, err
		}
		if tid != 0 {
			found = append(found, member{pid, tid})
		}
	}
	return found, nil
}

func preDump(ctx context.Context, root int) error {
	found, err := members(ctx, root)
	if err != nil {
		return err
	}
	for _, m := range found {
		if err := call(ctx, callLock, m); err != nil {
			return err
		}
	}
	for _, m := range found {
		if err := stop(ctx, m.pid); err != nil {
			return err
		}
		if err := call(ctx, callCheckpoint, m); err != nil {
			return err
		}
	}
	return nil
}

// preResume queues a SIGSTOP for every process. It takes effect before the process executes
// an instruction. Only post-resume asks which processes use CUDA.
func preResume(_ context.Context, root int) error { return signalTree(root, unix.SIGSTOP) }

func postResume(ctx context.Context, root int) error {
	found, err := members(ctx, root)
	if err != nil {
		return err
	}
	for _, m := range found {
		if err := call(ctx, callRestore, m); err != nil {
			return err
		}
		if err := unix.Kill(m.pid, unix.SIGCONT); err != nil {
			return err
		}
		if err := call(ctx, callUnlock, m); err != nil {
			return err
		}
	}
	return signalTree(root, unix.SIGCONT)
}

func signalTree(root int, sig unix.Signal) error {
	pids, err := proc.Tree(root)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, sig); err != nil {
			return err
		}
	}
	return nil
}

func stop(ctx context.Context, pid int) error {
	process, err := proc.Open(pid)
	if err != nil {
		return err
	}
	defer process.Close()
	return proc.Stop(ctx, process)
}
