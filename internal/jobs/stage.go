package jobs

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/jobs/store"
	"cucriu/internal/units"
)

// leastStage is how much room a directory for images must have, in bytes.
const leastStage = 64 << 20

// checkStage finds out at the start, and not at the first checkpoint, whether images can be
// written to the directory that was asked for.
func checkStage(s *core) error {
	if s.Stage == "" || s.Stage == StageMemory || s.Stage == StageDisk {
		return nil
	}
	info, err := os.Stat(s.Stage)
	if err == nil && !info.IsDir() {
		err = &os.PathError{Op: "stat", Path: s.Stage, Err: unix.ENOTDIR}
	}
	if err == nil {
		err = store.CheckDir("the directory", s.Stage)
	}
	var disk unix.Statfs_t
	if err == nil {
		err = os.NewSyscallError("access", unix.Access(s.Stage, unix.W_OK))
	}
	if err == nil {
		err = os.NewSyscallError("statfs", unix.Statfs(s.Stage, &disk))
	}
	if err != nil {
		return fmt.Errorf("--stage %s: %w", s.Stage, err)
	}
	room := int64(disk.Bavail) * disk.Bsize
	if room < leastStage {
		return fmt.Errorf("--stage %s: %s are free there, and an image needs more", s.Stage, units.Size(room))
	}
	if all, err := s.store.Checkpoints(); err == nil && len(all) > 0 && all[len(all)-1].Bytes > room {
		s.say(fmt.Sprintf("--stage %s: %s are free there, and the newest checkpoint has %s: images go straight to %s until there is more", s.Stage, units.Size(room), units.Size(all[len(all)-1].Bytes), s.Dir))
	}
	return nil
}

// stages returns the directories below which a dump is tried to be staged, the fastest first. asked is
// what the user wants, and memory the staging directory in memory. The last image of a job that is ended
// goes to the disk at once: in memory it would be the only copy.
//
// A dump is refused, before the job is touched, if its image does not fit where it is to go.
func stages(asked, memory string, p *sandbox.Sandbox, end bool) []string {
	const disk = "" // of the store
	var fs unix.Statfs_t
	switch {
	case end || asked == StageDisk:
		return []string{disk}
	case asked != "" && asked != StageMemory:
		return []string{asked, disk}
	case unix.Statfs(p.InsidePath(memory), &fs) == nil && int64(fs.Type) == unix.TMPFS_MAGIC && p.HasOwnMount(memory):
		return []string{p.InsidePath(memory), disk}
	}
	return []string{disk} // the sandbox was made without
}

// memoryStage is the staging directory in memory, as the sandbox sees it. It is mounted there only:
// it goes with the sandbox, and with whoever still has it open.
func memoryStage(runDir string) string { return filepath.Join(runDir, "stage") }
