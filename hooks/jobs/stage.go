package jobs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// stages returns the directories below which a dump is tried to be staged, the fastest first. The
// last image of a job that is ended goes to the disk at once: in memory it would be the only copy.
//
// A dump is refused, before the job is touched, if its image does not fit where it is to go.
func (s *supervisor) stages(end bool) []string {
	const disk = "" // of the store
	switch {
	case end || s.Stage == StageDisk:
		return []string{disk}
	case s.Stage != "" && s.Stage != StageMemory:
		return []string{s.Stage, disk}
	case !s.hasMemoryStage():
		return []string{disk}
	}
	return []string{s.memoryStage(), disk}
}

func (s *supervisor) memoryStage() string { return filepath.Join(s.runDir, "stage") }

// hasMemoryStage reports whether we and the place see the same staging directory in memory. A
// place that was made before it does not.
func (s *supervisor) hasMemoryStage() bool {
	var here, inside unix.Stat_t
	var fs unix.Statfs_t
	dir := s.memoryStage()
	return unix.Statfs(dir, &fs) == nil && int64(fs.Type) == unix.TMPFS_MAGIC &&
		unix.Stat(dir, &here) == nil && unix.Stat(s.place.InsidePath(dir), &inside) == nil &&
		here.Dev == inside.Dev && here.Ino == inside.Ino
}

// beginStage mounts the staging directory in memory, for a place that is made next.
func (s *supervisor) beginStage() error {
	if s.Stage != "" && s.Stage != StageMemory {
		return nil
	}
	dir := s.memoryStage()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	s.endStage() // that of a supervisor which was killed
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var err error
	for _, huge := range []string{",huge=always", ""} { // not every kernel has it
		err = unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700,size=100%"+huge)
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("staging directory in memory: %w", err)
}

// endStage gives the memory back. A place that is still there keeps its view of it, which is
// empty between two checkpoints.
func (s *supervisor) endStage() {
	dir := s.memoryStage()
	if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
		return
	}
	_ = os.Remove(dir)
}
