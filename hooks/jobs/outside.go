package jobs

import (
	"fmt"
	"os"
	"path/filepath"

	"cucriu/criuutil/images"
)

// restorable returns a directory from which a checkpoint is restored. The job's connections to
// the outside are closed in it: whoever was at their other end has gone on, or gone. Those inside
// of the job come back. The notes name what is closed.
func (s *supervisor) restorable(dir string) (_ string, notes []string, release func(), err error) {
	release = func() {}
	outside, err := images.OutsideConnections(dir)
	if err != nil || len(outside) == 0 {
		return dir, nil, release, err
	}
	stage, err := s.store.StageDir("") // where links to the checkpoint's files can be made
	if err != nil {
		return "", nil, release, err
	}
	release = func() { _ = s.store.RemoveStage(stage) }
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", nil, release, err
	}
	for _, entry := range entries {
		if entry.Name() == images.FilesName || !entry.Type().IsRegular() {
			continue
		}
		if err := os.Link(filepath.Join(dir, entry.Name()), filepath.Join(stage, entry.Name())); err != nil {
			return "", nil, release, fmt.Errorf("prepare the checkpoint for its restore: %w", err)
		}
	}
	for _, c := range outside {
		notes = append(notes, fmt.Sprintf("the connection from %v leads out of the job and comes back closed", c))
	}
	return stage, notes, release, images.WriteFilesWithoutOutside(dir, stage)
}
