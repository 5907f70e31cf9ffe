package hooks

import (
	"context"
	"errors"
	"fmt"

	"cucriu/criuutil"
	"cucriu/cudackpt"
)

// target is a CUDA process at hand: the member of a session, its pidfd, and
// the driver's view of it.
type target struct {
	*criuutil.Process
	member *Member
	cuda   cudackpt.Process
	locked bool // by the dump's current try
	frozen bool // by a v1 freezer instead of stopped, for criu to dump
}

func closeTargets(targets []*target) {
	for _, t := range targets {
		t.Close()
	}
}

func processesOf(targets []*target) []*criuutil.Process {
	processes := make([]*criuutil.Process, len(targets))
	for i, t := range targets {
		processes[i] = t.Process
	}
	return processes
}

// inspectTree walks the tree below root, and finds its CUDA processes and
// whatever would make the dump fail after GPU state has been touched. It
// touches nothing. open is called once the first process turns up that has
// libcuda mapped: a tree without CUDA needs no driver.
func inspectTree(ctx context.Context, root int, open func() (*cudackpt.Driver, error)) ([]Member, error) {
	pids, err := criuutil.Tree(root)
	if err != nil {
		return nil, err
	}
	var members []Member
	for _, pid := range pids {
		member, err := inspectProcess(ctx, pid, open)
		if errors.Is(err, criuutil.ErrGone) && pid != root {
			continue
		}
		if err != nil {
			return nil, err
		}
		if member != nil {
			members = append(members, *member)
		}
	}
	return members, nil
}

// inspectProcess returns the member that a CUDA process will be, or nil for a
// process without CUDA.
func inspectProcess(ctx context.Context, pid int, open func() (*cudackpt.Driver, error)) (*Member, error) {
	held, err := footprintOf(pid)
	if err != nil {
		return nil, err
	}
	if !held.libcuda && len(held.devices) == 0 {
		return nil, nil
	}
	process, err := criuutil.OpenProcess(pid)
	if err != nil {
		return nil, err
	}
	defer process.Close()
	status, err := criuutil.ReadStatus(pid)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("process %d (%s)", pid, status.Name)
	driver, err := open()
	if err != nil {
		return nil, fmt.Errorf("%s uses CUDA, and its GPU state cannot be saved: %w", name, err)
	}
	// Asking for the restore thread is the one call that does not block if the
	// process is stopped or frozen.
	_, err = driver.Process(pid).RestoreThreadID(ctx)
	if errors.Is(err, cudackpt.ResultNotInitialized) {
		if len(held.devices) > 0 {
			return nil, fmt.Errorf("%s holds %v but has no CUDA state that the driver could save: a child forked from a CUDA process "+
				"without exec (a PyTorch DataLoader worker with the fork start method is one), or a user of NVML or of graphics; "+
				"criu cannot dump it: end it, or start such children with spawn or forkserver, before the dump", name, held.devices)
		}
		return nil, nil // libcuda is loaded but was never used
	}
	if err != nil {
		if !process.Alive() {
			return nil, goneOr(pid, criuutil.ErrGone)
		}
		return nil, err
	}
	if status.TracerPID != 0 {
		return nil, fmt.Errorf("%s is traced by process %d (a debugger?): detach it before the dump", name, status.TracerPID)
	}
	member := &Member{Ident: process.Ident, ImagePID: status.ImagePID(), Name: status.Name}
	if err := driver.CheckLibrary(pid); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if member.Stopped, err = criuutil.Stopped(pid); err != nil {
		return nil, err
	}
	if member.GPUs, err = driver.VisibleGPUs(pid); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(member.GPUs) == 0 {
		return nil, fmt.Errorf("%s uses CUDA but no GPU's device node is in its /dev", name)
	}
	return member, nil
}

// openMembers takes hold of the members of a session. Those that have ended
// are left out.
func openMembers(driver *cudackpt.Driver, members []Member) ([]*target, error) {
	var targets []*target
	for i := range members {
		process, err := criuutil.Reopen(members[i].Ident)
		if errors.Is(err, criuutil.ErrGone) {
			continue
		}
		if err != nil {
			closeTargets(targets)
			return nil, err
		}
		targets = append(targets, &target{Process: process, member: &members[i], cuda: driver.Process(process.PID)})
	}
	return targets, nil
}

// unionOfGPUs lists every GPU that any of the processes saw, in order of first
// appearance.
func unionOfGPUs(lists ...[]cudackpt.GPU) []cudackpt.GPU {
	var union []cudackpt.GPU
	seen := make(map[cudackpt.UUID]bool)
	for _, list := range lists {
		for _, gpu := range list {
			if !seen[gpu.UUID] {
				seen[gpu.UUID] = true
				union = append(union, gpu)
			}
		}
	}
	return union
}
