package jobs

import (
	"path/filepath"
	"strings"

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
	return []string{s.place.InsidePath(s.memoryStage()), disk}
}

// memoryStage is the staging directory in memory, as the place sees it. It is mounted there only:
// it goes with the place, and with whoever still has it open.
func (s *supervisor) memoryStage() string { return filepath.Join(s.runDir, "stage") }

// hasMemoryStage reports whether the place has one: it may have been made without.
func (s *supervisor) hasMemoryStage() bool {
	var fs unix.Statfs_t
	return unix.Statfs(s.place.InsidePath(s.memoryStage()), &fs) == nil && int64(fs.Type) == unix.TMPFS_MAGIC &&
		s.place.HasOwnMount(s.memoryStage())
}

// insidePath is the path by which the place knows a staging directory.
func (s *supervisor) insidePath(stage string) string {
	if inside, is := strings.CutPrefix(stage, s.place.InsidePath(s.memoryStage())); is {
		return s.memoryStage() + inside
	}
	return stage
}

// wantsMemoryStage reports whether a new place is to have a staging directory in memory.
func (s *supervisor) wantsMemoryStage() bool { return s.Stage == "" || s.Stage == StageMemory }
