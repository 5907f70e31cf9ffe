package migrate

import (
	"fmt"

	"golang.org/x/sys/unix"

	"cucriu/hooks/checkpoint"
	"cucriu/internal/jobs"
	"cucriu/internal/kit/proc"
)

// checkRoot refuses what cannot move as a tree of processes.
func (s *treeSource) checkRoot() error {
	if err := checkpoint.CheckRoot(s.hook, s.root); err != nil {
		return err
	}
	job, meaning, err := jobs.Involving(s.hook.Config.RunDir, s.root, true)
	if err == nil && job != nil {
		err = fmt.Errorf("process %d %s, which moves as a whole: cucriu migrate --job %s --to %s", s.root, meaning, job.Name, s.options.Host)
	}
	return err
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
