package preflight

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"cucriu/internal/image"
	"cucriu/internal/proc"
)

// RootFindings refuses what cannot be the root of a tree that criu dumps: nothing, a thread, a
// process that has ended, a thread of the kernel, or an ancestor of this program, which would
// then dump itself.
func RootFindings(root int) (Findings, error) {
	findings, err := ProcessFindings(root)
	if err != nil || len(findings) > 0 {
		return findings, err
	}
	pids, err := proc.Tree(root)
	if err != nil {
		return nil, err
	}
	return InsideFindings(pids, os.Getpid()), nil
}

// ProcessFindings refuses a pid that is not one of a process that runs.
func ProcessFindings(root int) (Findings, error) {
	const another = "name a process of the job (ps, or cucriu status)"
	status, err := proc.ReadStatus(root)
	var kernel bool
	if err == nil && !status.Ended {
		kernel, err = proc.IsKernelThread(root)
	}
	var f Finding
	switch {
	case errors.Is(err, proc.ErrGone):
		f = refuse(FindingNoProcess, "does not exist", another)
	case err != nil:
		return nil, err
	case status.TGID != root:
		f = refuse(FindingNoProcess, fmt.Sprintf("is a thread of process %d", status.TGID), fmt.Sprintf("name process %d", status.TGID))
	case status.Ended:
		if ended := endedFindings(root); ended != nil {
			return ended, nil
		}
		f = refuse(FindingZombie, fmt.Sprintf("has ended, and its parent, process %d, has not waited for it: nothing of it is left", status.PPID), "name a process that runs")
	case kernel:
		f = refuse(FindingKernelThread, "is a thread of the kernel, not a process", another)
	default:
		return nil, nil
	}
	f.PID, f.Process = root, status.Name
	return Findings{f}, nil
}

// ContainerFindings refuses a process with mounts of its own, as in a container or in the sandbox
// of a long job. criu needs to be told of each, and crashes at the restore without.
func ContainerFindings(root int) Findings {
	f := aboutProcess(root, refuse(FindingContainer, "is in a mount namespace of its own, as in a container, and criu does not know its mounts",
		"let the engine dump or move the container (runc checkpoint, podman container checkpoint); a job of cucriu run: see cucriu jobs --help"))
	if its := namespaceOf(strconv.Itoa(root), "mnt"); its == "" || its == namespaceOf("self", "mnt") {
		return nil // it has ended, or it has ours
	}
	return Findings{f}
}

// DirectoryFindings refuses a directory that a dump cannot make its image directory.
func DirectoryFindings(dir string) Findings {
	if err := image.CheckVacant(dir); err != nil {
		return Findings{found(FindingImageDirectory, err, "name another directory")}
	}
	return nil
}
