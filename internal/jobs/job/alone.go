package job

import (
	"fmt"
	"os"
	"path/filepath"

	"cucriu/internal/fault"
)

// RefuseAlone refuses an image that is a checkpoint of a long job. What restores it must know the job,
// or the job could run twice.
func RefuseAlone(image string) error {
	image, err := filepath.EvalSymlinks(image)
	if err != nil {
		return nil // the restore says what is wrong with it
	}
	checkpoints, name := filepath.Split(image)
	dir := filepath.Dir(filepath.Clean(checkpoints))
	if filepath.Base(checkpoints) != "checkpoints" {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(dir, "job.json")); err != nil {
		return nil
	}
	return fault.New(fmt.Sprintf("%s is a checkpoint of a long job, which could then run twice", filepath.Join(dir, "checkpoints", name)),
		fmt.Sprintf("cucriu run --dir %s resumes the job; to restore it beside that, copy the checkpoint elsewhere first", dir))
}
