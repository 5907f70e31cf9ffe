package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// minEach is the least GPU memory of a process: a part that changes at each tick, and a
// part that does not.
const minEach = 2 * mib

// job is a workload: a process tree in whose GPU memory every word is known.
type job struct {
	pid     int   // of the root, before and after a restore
	tree    []int // pids
	folders []string
	stderr  string
}

// startJob starts a workload in a folder and waits until each of its processes
// ticks.
func (o options) startJob(ctx context.Context, h *host, l load, mode, dir string) (*job, error) {
	j := &job{folders: []string{dir}, stderr: filepath.Join(dir, "stderr")}
	gpus := make([]string, min(h.gpus, l.processes))
	for i := range gpus {
		gpus[i] = strconv.Itoa(i)
	}
	// Only a little of the memory changes at each tick. So neither the lock nor the first
	// tick after a restore takes long: that time would be the job's, not ours.
	args := []string{"--dir", dir, "--gpus", strings.Join(gpus, ","), "--mib", "1", "--ballast", strconv.FormatInt(l.each/mib-1, 10), "--tick-ms", "5"}
	if l.processes > 1 {
		args = append(args, "--procs", strconv.Itoa(l.processes))
		j.folders = nil
		for i := range l.processes {
			j.folders = append(j.folders, filepath.Join(dir, "rank-"+strconv.Itoa(i)))
		}
	}
	for _, folder := range j.folders {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return nil, err
		}
	}
	ticks, err := watchFor("status", j.folders)
	if err != nil {
		return nil, err
	}
	defer ticks.Close()

	stderr, err := os.Create(j.stderr)
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	// Only end ends the job, because criu takes it over.
	cmd := h.command(context.WithoutCancel(ctx), o.environment(mode), o.artefact("build", "workload", "cudawork"), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Dir = null, null, stderr, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	j.pid = cmd.Process.Pid
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() { stop(fmt.Errorf("it has ended: %w", cmd.Wait())) }()
	if _, err = ticks.wait(ctx, 3); err == nil {
		j.tree, err = proc.Tree(j.pid)
	}
	if err != nil {
		said, _ := os.ReadFile(j.stderr)
		return nil, errors.Join(fmt.Errorf("start the job: %w\n%s", err, said), j.end(context.WithoutCancel(ctx)))
	}
	return j, nil
}

// check makes every process compare all its GPU memory with the expected content.
func (j *job) check(ctx context.Context) error {
	answers, err := watchFor("checked", j.folders)
	if err != nil {
		return err
	}
	defer answers.Close()
	for _, folder := range j.folders {
		if err := os.WriteFile(filepath.Join(folder, "check"), nil, 0o600); err != nil {
			return err
		}
	}
	if _, err := answers.wait(ctx, 1); err != nil {
		return fmt.Errorf("the job does not check its GPU memory: %w", err)
	}
	for _, folder := range j.folders {
		var checked struct{ Bad, Words int }
		data, err := os.ReadFile(filepath.Join(folder, "checked"))
		if err == nil {
			err = json.Unmarshal(data, &checked)
		}
		if err == nil && (checked.Bad != 0 || checked.Words == 0) {
			said, _ := os.ReadFile(j.stderr)
			err = fmt.Errorf("GPU memory is not what it must be after the restore: %s\n%s", data, said)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// end kills the job and waits until its pids are free.
func (j *job) end(ctx context.Context) error {
	if err := unix.Kill(-j.pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end the job: %w", err)
	}
	return j.waitGone(ctx)
}

// waitGone waits until the pids of the job are free. It polls, because no event tells us
// that another process has reaped one.
func (j *job) waitGone(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, pid := range append([]int{j.pid}, j.tree...) {
		for unix.Kill(pid, 0) == nil {
			select {
			case <-ctx.Done():
				return fmt.Errorf("process %d of the job does not end: %w", pid, ctx.Err())
			case <-time.After(2 * time.Millisecond):
			}
		}
	}
	return nil
}
