package job

import (
	"fmt"
	"os"
	"path/filepath"

	"cucriu/hooks/image"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/fault"
)

// RecordName is the file that makes a directory that of a long job.
const RecordName = "job.json"

// RefuseDirectory refuses the directory of a long job as an image directory.
func RefuseDirectory(dir string) error {
	if _, err := os.Lstat(filepath.Join(dir, RecordName)); err != nil || len(image.PresentFindings(dir)) == 0 {
		return nil
	}
	return fault.New(dir+" is the directory of a long job", fmt.Sprintf("to resume the job, cucriu run --dir %s; to verify its checkpoints, cucriu jobs verify %[1]s", dir))
}

// RefuseAlone refuses an image that is a checkpoint of a long job. What restores it must know the job,
// or the job could run twice.
func RefuseAlone(image string) error {
	image, err := filepath.Abs(image)
	if err == nil {
		image, err = filepath.EvalSymlinks(image)
	}
	if err != nil {
		return nil // the restore says what is wrong with it
	}
	checkpoints := filepath.Dir(image)
	dir := filepath.Dir(checkpoints)
	if filepath.Base(checkpoints) != store.CheckpointsDir {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(dir, RecordName)); err != nil {
		return nil
	}
	return fault.New(fmt.Sprintf("%s is a checkpoint of a long job, which could then run twice", image),
		fmt.Sprintf("cucriu run --dir %s resumes the job; to restore it beside that, copy the checkpoint elsewhere first", dir))
}
