package prepare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"sync"

	"github.com/prometheus/procfs"

	"cucriu/cudackpt"
	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
)

// Describe describes the job below root, which keeps running. criu is the path of the criu that
// is to dump it; empty for the system's. Describe touches nothing, and leaves Map empty.
func Describe(ctx context.Context, hook *hooks.Hook, root int, criu string) (*Job, error) {
	hook = hook.Filled()
	ctx, cancel := context.WithTimeout(ctx, hook.Config.Lock.Timeout)
	defer cancel()
	tree, err := inventory.Advice(root)
	if err != nil {
		return nil, err
	}
	before := lookForFiles(tree, hook.Config.Driver.Root)
	j := &Job{RootPID: root}
	if j.Host, err = thisHost(ctx, criu); err != nil {
		return nil, err
	}
	if j.Own, err = ownNamespaces(tree.Processes[0]); err != nil {
		return nil, err
	}
	if err := j.addProcesses(ctx, hook, tree); err != nil {
		return nil, err
	}
	if !j.Own.PID {
		if j.Numbers, err = numbers(tree); err != nil {
			return nil, err
		}
	}
	used, err := j.addFiles(ctx, before, hook.Config.Driver.Root)
	if err != nil {
		return nil, err
	}
	if err := j.addMounts(tree); err != nil {
		return nil, err
	}
	if err := j.addUNIXSockets(used); err != nil {
		return nil, err
	}
	if err := j.addSockets(used); err != nil {
		return nil, err
	}
	if j.Options, _, err = checkpoint.CriuOptions(ctx, root, criu, false); err != nil {
		return nil, err
	}
	if j.Options.TCPEstablished && j.Options.NetworkLock == "nftables" {
		j.Features = append(j.Features, "network_lock_nftables")
	}
	if j.Own.Time {
		j.Features = append(j.Features, "timens")
	}
	// Such as a file name that is not UTF-8, or more files than a job may have.
	if err := j.Validate(); err != nil {
		return nil, fmt.Errorf("the job cannot be described to another host: %w", err)
	}
	return j, nil
}

// ownNamespaces compares the namespaces of a process with those of this program.
func ownNamespaces(p *inventory.Process) (Namespaces, error) {
	var own Namespaces
	for kind, set := range map[string]*bool{"pid": &own.PID, "mnt": &own.Mount, "net": &own.Network, "user": &own.User, "time": &own.Time} {
		if inventory.NamespaceOf("self", kind) == "" {
			continue // a kernel without this kind
		}
		if p.Namespace(kind) == "" {
			return own, proc.GoneOr(p.PID, os.ErrNotExist)
		}
		*set = !p.InOurs(kind)
	}
	return own, nil
}

// addProcesses adds the processes of the tree, the root first. One that ends meanwhile is left out.
func (j *Job) addProcesses(ctx context.Context, hook *hooks.Hook, tree *inventory.Tree) error {
	open := sync.OnceValues(func() (*cudackpt.Driver, error) {
		driver, err := hook.OpenDriver()
		if err == nil {
			err = driver.Supports(cudackpt.FeatureCheckpoint)
		}
		return driver, err
	})
	for _, of := range tree.Processes {
		p, err := describeProcess(ctx, of, open)
		if errors.Is(err, proc.ErrGone) && of.PID != j.RootPID {
			continue
		}
		if err != nil {
			return err
		}
		j.Processes = append(j.Processes, p)
		j.SharedBytes = max(j.SharedBytes, of.Status().Shared)
	}
	group, err := groupOf(j.RootPID)
	if err != nil {
		return err
	}
	j.Cgroup = group
	if j.manifest() == nil {
		return nil
	}
	driver, err := open()
	if err != nil {
		return err
	}
	j.DriverVersion, err = driver.DriverVersion()
	return err
}

func describeProcess(
	ctx context.Context, of *inventory.Process, open func() (*cudackpt.Driver, error),
) (Process, error) {
	status := of.Status()
	p := Process{
		PID: of.PID, Name: status.Name, UID: status.UIDs[1], RealUID: status.UIDs[0],
		Threads: len(of.Threads()), PrivateBytes: status.Anonymous,
	}
	if known, err := user.LookupId(strconv.Itoa(p.UID)); err == nil {
		p.User = proc.Printable(known.Username)
	}
	used, err := checkpoint.Describe(ctx, of.PID, open)
	if err == nil && used != nil {
		p.GPUs, p.MemoryBytes = used.GPUs, used.MemoryBytes
	}
	return p, err
}

// groupOf returns the control group of a process in cgroup v2; empty if there is none.
func groupOf(pid int) (string, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return "", proc.GoneOr(pid, err)
	}
	groups, err := process.Cgroups()
	if err != nil {
		return "", proc.GoneOr(pid, err)
	}
	for _, group := range groups {
		if group.HierarchyID == 0 && group.Path != "/" {
			return group.Path, nil
		}
	}
	return "", nil
}

// numbers lists what criu gives the restored processes again: see criuimage.Tree.Numbers.
func numbers(tree *inventory.Tree) ([]int, error) {
	var all []int
	var root procfs.ProcStat
	for i, p := range tree.Processes {
		process, err := procfs.NewProc(p.PID)
		var stat procfs.ProcStat
		if err == nil {
			stat, err = process.Stat()
		}
		if err != nil {
			if err = proc.GoneOr(p.PID, err); errors.Is(err, proc.ErrGone) && i > 0 {
				continue
			}
			return nil, err
		}
		if i == 0 {
			root = stat
		}
		all = append(append(all, p.PID), p.Threads()...)
		if stat.PGRP != root.PGRP {
			all = append(all, stat.PGRP)
		}
		if stat.Session != root.Session {
			all = append(all, stat.Session)
		}
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(id int) bool { return id <= 0 }), nil
}
