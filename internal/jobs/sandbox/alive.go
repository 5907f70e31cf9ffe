package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Init holds two locks as long as it lives: one in the folder of the sandbox, and one in the job's
// folder in the run directory, which stays whatever becomes of the job's directory. They show from
// every container and pid namespace whether the sandbox is there, and from the first moment on.

// lookPatience is how long somebody may have a lock who only looks whether it is free.
const lookPatience = 10 * time.Second

// holdAlive takes a lock of a sandbox for its init.
func holdAlive(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, aliveName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if time.Since(begin) > lookPatience {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
	}
}

// IsAlive reports whether the init of a sandbox lives, by its lock in a folder. known is false if that
// cannot be told.
func IsAlive(dir string) (alive, known bool) {
	f, err := os.OpenFile(filepath.Join(dir, aliveName), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, false // it has not come that far
	}
	if err != nil {
		return true, false
	}
	defer f.Close() // which gives the lock back; it is a shared one, so that who else looks sees none
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	return errors.Is(err, unix.EWOULDBLOCK), err == nil || errors.Is(err, unix.EWOULDBLOCK)
}

// unrecordedPatience is how long an init may take to notice that its maker was killed.
const unrecordedPatience = 10 * time.Second

// awaitUnrecorded waits until the init of a sandbox ends that was never on record. Before it has
// its lock, it has started nothing, and it starts nothing once it has noticed.
func awaitUnrecorded(dir string) error {
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if alive, _ := IsAlive(dir); !alive {
			return ErrGone
		}
		if time.Since(begin) > unrecordedPatience {
			return fmt.Errorf("%s: another program is starting a job there", dir)
		}
	}
}

// FencePeriod is how often init looks whether the job still belongs to this sandbox.
const FencePeriod = 5 * time.Second

// Fence is a file that says to which sandbox a job belongs. Once it names a later one, somebody
// has taken the job over, and this sandbox must end although nobody may be left to end it. A file
// that cannot be read says nothing, nor does one that comes from a backup.
type Fence struct {
	Path string `json:"path"`
	Text string `json:"text"`
}

// FenceText names a sandbox: whoever makes it is in a pid namespace of a boot, and has the job's
// directory in its generation.
func FenceText(boot string, namespace, generation uint64) string {
	return fmt.Sprintf("%s %d %d %d\n", boot, namespace, generation, time.Now().UnixNano())
}

// watch returns when the job has been taken over.
func (f Fence) watch() {
	for range time.Tick(FencePeriod) {
		if text, err := os.ReadFile(f.Path); err == nil && string(text) != f.Text && !isEarlier(string(text), f.Text) {
			return
		}
	}
}

// isEarlier reports whether a fence was raised before another one, by the generation of the job's
// directory and by the clock.
func isEarlier(text, other string) bool {
	var boot string
	var namespace, generation, otherGeneration uint64
	var at, otherAt int64
	if _, err := fmt.Sscanf(text, "%s %d %d %d\n", &boot, &namespace, &generation, &at); err != nil {
		return false
	}
	if _, err := fmt.Sscanf(other, "%s %d %d %d\n", &boot, &namespace, &otherGeneration, &otherAt); err != nil {
		return false
	}
	return generation <= otherGeneration && at <= otherAt
}
