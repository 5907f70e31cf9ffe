package inside

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/proc"
)

// refuseOutside refuses a job one of whose processes is not in the tree of its root: it became a child of the
// sandbox's init when its parent ended. That happens only where the root is no first process of ours. A dump
// would leave it behind without a word.
//
// The job's processes are those under a seccomp filter: all of them inherit the one that the job was started
// with, and nothing of ours in a sandbox has one.
func refuseOutside(root int) error {
	pids, err := proc.All()
	if err != nil {
		return err
	}
	tree, err := proc.Tree(root) // after that, so that who is born meanwhile is in it
	if errors.Is(err, proc.ErrGone) {
		return nil // which others report
	}
	if err != nil {
		return err
	}
	var all []error
	for _, pid := range pids {
		if slices.Contains(tree, pid) {
			continue
		}
		status, err := proc.ReadStatus(pid)
		if err != nil || status.Ended || !status.Seccomp {
			continue
		}
		all = append(all, fault.New(fmt.Sprintf("process %d (%s) of the job has left its process tree, because its parent has ended, and would be missing from the checkpoint", pid, proc.Printable(status.Name)),
			"end it, or start the job anew in another --dir, in which such processes stay below the job's first process"))
	}
	return errors.Join(all...)
}

// refuseMounts refuses a job that has mounted or unmounted something in its sandbox.
func refuseMounts(points []string) error {
	if len(points) == 0 {
		return nil
	}
	return fault.New("the job has mounted or unmounted something on "+strings.Join(points, ", ")+" in its sandbox, which a resume would undo",
		"let the job undo that, or do it on the host before cucriu run starts the job")
}
