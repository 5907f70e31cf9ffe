package job

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cucriu/hooks/image"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/twice"
)

// RefuseDirectory refuses the directory of a long job as an image directory.
func RefuseDirectory(dir string) error {
	if _, err := os.Lstat(filepath.Join(dir, twice.RecordName)); err != nil || len(image.PresentFindings(dir)) == 0 {
		return nil
	}
	return fault.New(dir+" is the directory of a long job", fmt.Sprintf("to resume the job, cucriu run --dir %s; to verify its checkpoints, cucriu jobs verify %[1]s", dir))
}

// Of returns the job that an image was made of: a long job if the image is in its directory. A copy elsewhere is that
// of a job of its own.
func Of(img *image.Image) twice.Job {
	if _, dir := twice.KeptIn(img.Dir()); dir != "" {
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
