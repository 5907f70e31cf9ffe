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
	return jobs.CheckMovesAlone(s.hook, s.root, s.options.Host)
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
