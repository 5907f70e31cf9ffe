package inspect

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/image"
	"cucriu/internal/proc"
)

// RootFindings refuses what cannot be the root of a tree that criu dumps: nothing, a thread, a
// process that has ended, a thread of the kernel, or an ancestor of this program, which would
// then dump itself.
func RootFindings(root int) (preflight.Findings, error) {
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
	if its := namespaceOf(strconv.Itoa(root), "mnt"); its == "" || its == namespaceOf("self", "mnt") {
		return nil // it has ended, or it has ours
	}
	return preflight.Findings{aboutProcess(root, preflight.New(preflight.FindingContainer, "is in a mount namespace of its own, as in a container, and criu does not know its mounts", ""))}
}

// DirectoryFindings refuses a directory that a dump cannot make its image directory.
func DirectoryFindings(dir string) preflight.Findings {
	if err := image.CheckVacant(dir); err != nil {
		return preflight.Findings{preflight.Found(preflight.FindingImageDirectory, err)}
	}
	return nil
}

// Existing returns dir, or its nearest parent that exists if dir does not.
func Existing(dir string) string {
	for dir != "" {
		_, err := os.Stat(dir)
		absent := errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) // its parent may be a file
		if !absent || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}
