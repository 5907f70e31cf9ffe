package inspect

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
)

// judges are what is looked for in each process of a tree. The remedy is that of the kind if none is
// given to found.
var judges = []struct {
	name  string
	judge func(p *inventory.Process, found found)
}{
	{preflight.FindingTraced, traced},
	{preflight.FindingIOURing, ring},
	{preflight.FindingOtherUser, foreign},
	{preflight.FindingMemoryPolicy, memoryPolicy},
	{preflight.FindingNotRestored, notRestored},
	{preflight.FindingNamespace, otherNamespace},
	{preflight.FindingUnsupportedFile, unsupportedFiles},
	{preflight.FindingFileGuard, guards},
	{preflight.FindingUnrestorable, programInMemory},
	{preflight.FindingUnrestorable, programByPath},
	{preflight.FindingUnrestorable, oddThread},
	{preflight.FindingUnrestorable, orphanTimer},
	{preflight.FindingUnrestorable, oddFile},
	{preflight.FindingUnrestorable, sealedMemory},
	{preflight.FindingUnrestorable, highDescriptor},
}

// found takes what a judge has found.
type found func(message, remedy string)

// judge finds what would make the dump of the process fail, or lose it. One that ends meanwhile has parts only of
// what it had, and is no obstacle.
func judge(p *inventory.Process) (findings preflight.Findings) {
	for _, j := range judges {
		j.judge(p, func(message, remedy string) {
			findings = append(findings, about(p, preflight.New(j.name, message, remedy)))
		})
	}
	if status, err := proc.ReadStatus(p.PID); errors.Is(err, proc.ErrGone) || status.Ended && !p.Status().Ended {
		return nil
	}
	return findings
}

// judge judges all processes of the tree, and what they share.
func (s *snapshot) judge() preflight.Findings {
	each := make([]preflight.Findings, len(s.Processes))
	proc.AtOnce(runtime.NumCPU(), len(s.Processes), func(i int) { each[i] = judge(s.Processes[i]) })
	return slices.Concat(slices.Concat(each...), s.removedFindings(), s.lowerFindings(), s.sharingFindings(), s.parentFindings(), s.orphanFindings())
}

// parentFindings warn of a launcher that is left behind, and refuse if others of its tree have libcuda: then the job is more
// than what is dumped. Unlike a shell's job, what a program has started is in the process group of that program. Whoever
// dumps the tree, or what has started that, is meant to stay.
func (s *snapshot) parentFindings() preflight.Findings {
	root := s.Processes[0]
	parent := root.Status().PPID
	if parent <= 1 {
		return nil
	}
	group, err := unix.Getpgid(root.PID)
	parents, parentErr := unix.Getpgid(parent)
	if err != nil || parentErr != nil || group == root.PID || group != parents {
		return nil
	}
	self, err := proc.Self()
	if err != nil {
		return nil
	}
	if ours, err := proc.IsAncestor(parent, self); err != nil || ours {
		return nil
	}
	launcher, err := proc.ReadStatus(parent)
	if err != nil {
		return nil
	}
	find := preflight.Warning
	family, _ := proc.Tree(parent)
	if slices.ContainsFunc(family, func(pid int) bool { return !slices.Contains(s.PIDs, pid) && hasLibcuda(pid) }) {
		find = preflight.New
	}
	return preflight.Findings{about(root, find(preflight.FindingParent,
		fmt.Sprintf("is a child of process %d (%s), which would stay behind and see it end", parent, launcher.Name),
		fmt.Sprintf("dump the whole job with -t %d", parent)))}
}

func hasLibcuda(pid int) bool {
	has, _ := inventory.MapsLibcuda(pid) // one that has ended has none
	return has
}

// lasts reports whether something stays true for a second. What is true for a moment only, as
// between vfork and exec, or while a process ends, is no obstacle.
func lasts(is func() bool) bool {
	for end := time.Now().Add(time.Second); is(); time.Sleep(10 * time.Millisecond) { // there is no event to wait for
		if time.Now().After(end) {
			return true
		}
	}
	return false
}

// endedFindings refuses a process whose main thread has ended while others run.
func endedFindings(pid int) preflight.Findings {
	if !lasts(func() bool {
		tids, err := proc.Threads(pid)
		return err == nil && slices.ContainsFunc(tids, func(tid int) bool {
			status, err := proc.ReadStatus(tid)
			return err == nil && !status.Ended && tid != pid
		})
	}) {
		return nil
	}
	return preflight.Findings{aboutProcess(pid, preflight.New(preflight.FindingUnsupportedProcess, "has other threads, but its main thread has ended (pthread_exit), and criu cannot dump it", ""))}
}

// sharingFindings refuses processes that share what only threads of one process may share.
func (s *snapshot) sharingFindings() preflight.Findings {
	var pid, other int
	var shared string
	if !lasts(func() bool {
		var alive []int
		for _, p := range s.Processes {
			if status, err := proc.ReadStatus(p.PID); err == nil && !status.Ended {
				alive = append(alive, p.PID)
			}
		}
		pid, other, shared = proc.Sharing(alive)
		return shared != ""
	}) {
		return nil
	}
	return preflight.Findings{aboutProcess(pid, preflight.New(preflight.FindingUnsupportedProcess, fmt.Sprintf("shares its %s with process %d (clone), and criu cannot dump that", shared, other),
		"run the job without it; if it was about to execute a program (vfork), try again"))}
}

// InsideFindings refuses a tree that contains criu itself, or the process that would start it.
func InsideFindings(pids []int, criu int) preflight.Findings {
	if !slices.Contains(pids, criu) {
		return nil
	}
	return preflight.Findings{aboutProcess(criu, preflight.New(preflight.FindingCriuInside, "is in the tree to be dumped, and criu cannot dump itself", ""))}
}

// aboutProcess marks a finding as one about a process that was not looked at.
func aboutProcess(pid int, f preflight.Finding) preflight.Finding {
	f.PID = pid
	if status, err := proc.ReadStatus(pid); err == nil {
		f.Process = status.Name
	}
	return f
}

// processName names a process for people.
func processName(pid int) string { return aboutProcess(pid, preflight.Finding{}).Subject() }

// readText reads a file below /proc; it is empty if the process has ended, or has made it too long.
func readText(format string, arguments ...any) string {
	text, _ := proc.ReadText(fmt.Sprintf(format, arguments...))
	return string(text)
}

// RootFindings refuses what cannot be the root of a tree that criu dumps: nothing, a thread, a
// process that has ended, a thread of the kernel, or an ancestor of this program, which would
// then dump itself.
func RootFindings(root int) (preflight.Findings, error) {
	findings, err := ProcessFindings(root)
	if err != nil || len(findings) > 0 {
		return findings, err
	}
	pids, err := proc.Tree(root)
	return InsideFindings(pids, os.Getpid()), err
}

// ProcessFindings refuses a pid that is not one of a process that runs.
func ProcessFindings(root int) (preflight.Findings, error) {
	status, err := proc.ReadStatus(root)
	var kernel bool
	if err == nil && !status.Ended {
		kernel, err = proc.IsKernelThread(root)
	}
	var f preflight.Finding
	switch {
	case errors.Is(err, proc.ErrGone):
		f = preflight.New(preflight.FindingNoProcess, "does not exist", "")
	case err != nil:
		return nil, err
	case status.TGID != root:
		f = preflight.New(preflight.FindingNoProcess, fmt.Sprintf("is a thread of process %d", status.TGID), fmt.Sprintf("name process %d", status.TGID))
	case status.Ended:
		if ended := endedFindings(root); ended != nil {
			return ended, nil
		}
		f = preflight.New(preflight.FindingZombie, fmt.Sprintf("has ended, and its parent, process %d, has not reaped it", status.PPID), "")
	case kernel:
		f = preflight.New(preflight.FindingKernelThread, "is a kernel thread, not a process", "")
	default:
		return nil, nil
	}
	f.PID, f.Process = root, status.Name
	return preflight.Findings{f}, nil
}

// ContainerFindings refuses a process with mounts of its own, as in a container or in the sandbox
// of a long job. criu needs to be told of each, and crashes at the restore without.
func ContainerFindings(root int) preflight.Findings {
	if its := inventory.NamespaceOfProcess(root, "mnt"); its == "" || its == inventory.NamespaceOf("self", "mnt") {
		return nil // it has ended, or it has ours
	}
	return preflight.Findings{aboutProcess(root, preflight.New(preflight.FindingContainer, "is in a mount namespace of its own, as in a container, and criu does not know its mounts", ""))}
}

// DirectoryFindings refuses a directory that a dump cannot make its image directory.
func DirectoryFindings(dir string) preflight.Findings {
	if err := imagedir.CheckVacant(dir); err != nil {
		return preflight.Findings{preflight.Found(preflight.FindingImageDirectory, err)}
	}
	return nil
}
