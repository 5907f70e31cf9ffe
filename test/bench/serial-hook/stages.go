package main

import (
	"context"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
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
		if err := checkpoint(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// checkpoint leaves every thread of the process in the group-stop: criu can wait for ever for
// one that is still on its way there.
func checkpoint(ctx context.Context, m member) error {
	process, err := proc.Open(m.pid)
	if err != nil {
		return err
	}
	defer process.Close()
	if err := proc.Stop(ctx, process); err != nil {
		return err
	}
	if err := call(ctx, callCheckpoint, m); err != nil {
		return err
	}
	return proc.KeepStopped(ctx, process)
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
