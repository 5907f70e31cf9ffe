package migrate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/hooks/checkpoint"
	"cucriu/internal/kit/durable"
)

const stagePrefix = "cucriu-migration-"

// stage is a directory for images that goes with the program that made it.
type stage struct {
	dir  string
	lock *os.File // a lock on the directory, for as long as it is needed
}

// newStage makes a directory in base, and removes those that killed programs have left there.
func newStage(runDir, base, id, side string) (*stage, error) {
	removeStale(runDir, base)
	dir := filepath.Join(base, stagePrefix+side+"-"+id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory for the image: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &stage{dir, lock}, nil
}

// round makes the directory of a round.
func (s *stage) round(number int) string {
	return filepath.Join(s.dir, fmt.Sprintf("round-%d", number))
}

// settle removes everything, unless a job has yet to be restored from it.
func (s *stage) settle(runDir string) error {
	sessions, err := checkpoint.Sessions(runDir)
	if err != nil || needed(sessions, s.dir) {
		return errors.Join(err, s.lock.Close())
	}
	return s.remove()
}

// remove removes everything.
func (s *stage) remove() error {
	defer s.lock.Close()
	return os.RemoveAll(s.dir)
}

func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}

// removeStale removes what killed programs have left, unless a job has yet to be restored from
// it. Anybody may make directories in /dev/shm: only root's are touched.
func removeStale(runDir, base string) {
	dirs, err := durable.Match(base, stagePrefix+"*")
	if err != nil {
		return
	}
	sessions, err := checkpoint.Sessions(runDir)
	if err != nil {
		return
	}
	for _, dir := range dirs {
		var stat unix.Stat_t
		err := unix.Lstat(dir, &stat)
		if err != nil || stat.Mode&unix.S_IFMT != unix.S_IFDIR || stat.Mode&0o777 != 0o700 || stat.Uid != uint32(os.Geteuid()) {
			continue
		}
		lock, err := lockDir(dir)
		if err != nil {
			continue
		}
		if !needed(sessions, dir) {
			_ = os.RemoveAll(dir)
		}
		lock.Close()
	}
}

func needed(sessions []checkpoint.Status, dir string) bool {
	for _, s := range sessions {
		if s.Outcome == "" && strings.HasPrefix(s.ImageDir, dir+"/") {
			return true
		}
	}
	return false
}
