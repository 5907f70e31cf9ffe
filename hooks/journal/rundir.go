package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
)

const sessionsName = "sessions" // in the run directory

// MakeSessionsDir makes the run directory, mode 0700 and owned by this user, and returns the directory of
// the sessions in it.
func MakeSessionsDir(runDir string) (string, error) {
	dir := filepath.Join(runDir, sessionsName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("run directory: %w", err)
	}
	for _, d := range []string{runDir, dir} {
		var stat unix.Stat_t
		if err := unix.Lstat(d, &stat); err != nil {
			return "", fmt.Errorf("run directory %s: %w", d, err)
		}
		if stat.Mode&unix.S_IFMT != unix.S_IFDIR || int(stat.Uid) != os.Geteuid() || stat.Mode&0o022 != 0 {
			return "", fmt.Errorf("run directory %s must be a directory owned by uid %d that nobody else can write (mode 0700): %w", d, os.Geteuid(), os.ErrPermission)
		}
	}
	return dir, nil
}

// IsForeign reports whether this program does not run as root and may not use the run
// directory. Then nothing in it is about what this program dumps, and only a dump with CUDA
// needs that directory.
func IsForeign(runDir string) bool {
	if os.Geteuid() == 0 {
		return false
	}
	_, err := MakeSessionsDir(runDir)
	return errors.Is(err, os.ErrPermission)
}

// Path returns the directory of a criu's session.
func Path(runDir string, kind Kind, criu proc.Ident) string {
	return filepath.Join(runDir, sessionsName, fmt.Sprintf("%s-%d-%d", kind, criu.PID, criu.StartTime))
}
