package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"cucriu/internal/core/journal"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/proc"
)

// askAgain has restored processes ask the kernel again for what criu forgets and they alone can ask: see
// [proc.Request]. All of them are in the group-stop. A job without that is better than none, so what cannot be had
// is only logged.
func (b *wayBack) askAgain(ctx context.Context) error {
	if b.Kind != journal.KindRestore {
		return nil
	}
	had := make(map[int][]proc.Request)
	for _, settings := range b.Manifest.Settings {
		had[settings.PID] = settings.Requests
	}
	pids := b.pids()
	return ParallelUpTo(runtime.NumCPU(), len(pids), func(i int) error {
		status, err := proc.ReadStatus(pids[i])
		if err != nil || len(had[status.ImagePID()]) == 0 {
			return nil
		}
		if err := b.askAgainIn(ctx, pids[i], had[status.ImagePID()]); err != nil {
			b.Env.Log.Warn("settings of a process were not restored", "pid", pids[i], "name", status.Name, "error", err)
		}
		return nil
	})
}

func (b *wayBack) askAgainIn(ctx context.Context, pid int, requests []proc.Request) (err error) {
	process, err := proc.Open(pid)
	if err != nil {
		return err
	}
	defer process.Close()
	if err := proc.KeepStopped(ctx, process); err != nil {
		return err
	}
	// A program that was killed may have borrowed them.
	if err := returnThreads(ctx, pid, b.BorrowedFile(pid)); err != nil {
		return err
	}
	tids, err := proc.Threads(pid)
	if err != nil {
		return err
	}
	asks := map[int]int{0: 0} // the threads by what the image calls them
	for _, tid := range tids {
		if status, err := proc.ReadStatus(tid); err == nil {
			asks[status.ImagePID()] = tid
		}
	}
	askers := []int{pid}
	for _, r := range requests {
		if tid := asks[r.TID]; tid != 0 && !slices.Contains(askers, tid) {
			askers = append(askers, tid)
		}
	}
	lent, err := inject.Borrow(ctx, pid, askers, b.BorrowedFile(pid))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lent.Return(ctx)) }()
	if err := b.Failpoint(ctx, "restore.asking"); err != nil {
		return err
	}
	var errs []error
	for _, r := range requests {
		nodes, call, err := r.Call()
		tid := asks[r.TID]
		if tid == 0 && r.TID != 0 {
			err = proc.ErrGone
		}
		if err == nil {
			err = lent.Call(ctx, process, tid, nodes, call)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("its %s could not be set: %w", r.What, err))
		}
	}
	return errors.Join(errs...)
}
