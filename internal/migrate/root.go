package migrate

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/internal/inspect"
	"cucriu/internal/jobs"
	"cucriu/internal/proc"
)

// checkRoot refuses what cannot move as a tree of processes.
func (s *treeSource) checkRoot() error {
	findings, err := inspect.RootFindings(s.root)
	if err == nil {
		err = findings.Err()
	}
	if err != nil {
		return err
	}
	all, err := jobs.Locals(s.hook.Config.RunDir)
	if err != nil {
		return err
	}
	for _, job := range all {
		switch {
		case job.Init == nil:
		case within(s.root, job.Init.PID):
			return fmt.Errorf("process %d belongs to the long job %s, which moves as a whole: cucriu migrate --job %[2]s --to %s", s.root, job.Name, s.options.Host)
		case within(job.Init.PID, s.root):
			return fmt.Errorf("the long job %s is below process %d, and must be moved by itself: cucriu migrate --job %[1]s --to %[3]s", job.Name, s.root, s.options.Host)
		}
	}
	return nil
}

// within reports whether a process is in the tree of another.
func within(pid, root int) bool {
	pids, err := proc.Tree(root)
	return err == nil && slices.Contains(pids, pid)
}

// hostMark is the same for two programs if they have the same run directory on the same host;
// empty if that cannot be told.
func hostMark(runDir string) string {
	var stat unix.Stat_t
	boot, err := proc.BootID()
	if err != nil || unix.Stat(runDir, &stat) != nil {
		return ""
	}
	return fmt.Sprintf("%s %d %d", boot, stat.Dev, stat.Ino)
}
