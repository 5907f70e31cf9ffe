package twice

import (
	"fmt"
	"os"
	"path/filepath"

	"cucriu/internal/kit/fault"
)

// In the directory of a long job.
const (
	RecordName     = "job.json"    // makes it one
	CheckpointsDir = "checkpoints" // has the images
)

// KeptIn returns the path of an image without links, and the directory of the long job that it is in; "" if it is in
// none.
func KeptIn(image string) (path, dir string) {
	path, err := filepath.Abs(image)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	checkpoints := filepath.Dir(path)
	if err != nil || filepath.Base(checkpoints) != CheckpointsDir {
		return image, "" // the restore says what is wrong with it
	}
	dir = filepath.Dir(checkpoints)
	if _, err := os.Lstat(filepath.Join(dir, RecordName)); err != nil {
		return path, ""
	}
	return path, dir
}

// RefuseKept refuses a start of an image that is in the directory of the long job which it was made of. What restores
// that job must know it, or the job could run twice.
func RefuseKept(image string, start Start) error {
	image, dir := KeptIn(image)
	if dir == "" || May(start, Fact{Kept, Long(dir)}) == nil {
		return nil
	}
	return fault.New(image+" is a checkpoint of a long job, which could then run twice",
		fmt.Sprintf("cucriu run --dir %s resumes the job; to restore it beside that, copy the checkpoint elsewhere first", dir))
}
