package job

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cucriu/hooks/image"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/twice"
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

// RefuseAlone refuses a start of an image that is in the directory of the long job which it was made of. What restores
// that job must know it, or the job could run twice.
func RefuseAlone(image string, start twice.Start) error {
	image, dir := inDirectoryOf(image)
	if dir == "" || twice.May(start, twice.Fact{Seen: twice.Kept, Of: twice.Long(dir)}) == nil {
		return nil
	}
	return fault.New(fmt.Sprintf("%s is a checkpoint of a long job, which could then run twice", image),
		"cucriu run --dir "+dir+" resumes the job; to restore it beside that, copy the checkpoint elsewhere first")
}

// inDirectoryOf returns the path of an image without links, and the directory of the long job that it is in; "" if it
// is in none.
func inDirectoryOf(image string) (path, dir string) {
	path, err := filepath.Abs(image)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	checkpoints := filepath.Dir(path)
	if err != nil || filepath.Base(checkpoints) != store.CheckpointsDir {
		return image, "" // the restore says what is wrong with it
	}
	dir = filepath.Dir(checkpoints)
	if _, err := os.Lstat(filepath.Join(dir, RecordName)); err != nil {
		return path, ""
	}
	return path, dir
}

// Of returns the job that an image was made of: a long job if the image is in its directory. A copy elsewhere is that
// of a job of its own.
func Of(img *image.Image) twice.Job {
	if _, dir := inDirectoryOf(img.Dir()); dir != "" {
		return twice.Long(dir)
	}
	return twice.Dumped(img.ID())
}

// LockStart refuses a start of an image while another start of the job that it was made of is at work. Until the file
// that it returns is closed or this process ends, it refuses others; the file is nil if there is nothing to lock. The
// lock is that of the job, and no reader of the image asks for it. It is on a file of the image because all who may
// start the job find that, from every container, and not on the directory, which a dump's watcher may have locked.
func LockStart(img *image.Image, start twice.Start) (*os.File, error) {
	if twice.May(start, twice.Fact{Seen: twice.Starting, Of: Of(img)}) == nil {
		return nil, nil
	}
	f, err := os.OpenFile(filepath.Join(img.Dir(), "inventory.img"), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil // the restore says what is wrong
	}
	if errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK) {
		f.Close()
		return nil, fault.New(fmt.Sprintf("image directory %s: another restore of this image is at work", img.Dir()),
			"wait until it is over")
	}
	return f, nil
}
