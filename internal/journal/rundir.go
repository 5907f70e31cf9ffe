package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cucriu/internal/proc"
)

const sessionsName = "sessions" // in the run directory

// JobsName is the folder of the long jobs in the run directory. Each has a folder there, and in that,
// called InnerName, the run directory of its sandbox. Host and sandbox see both.
const JobsName, InnerName = "jobs", "run"

// outer returns the run directory of the host of a sandbox's run directory, "" for any other.
func outer(runDir string) string {
	folder := filepath.Dir(runDir)
	if filepath.Base(runDir) != InnerName || filepath.Base(filepath.Dir(folder)) != JobsName {
		return ""
	}
	return filepath.Dir(filepath.Dir(folder))
}

// lockPath names the lock under which sessions begin, in whichever of the related run directories.
func lockPath(runDir string) string {
	if host := outer(runDir); host != "" {
		runDir = host
	}
	return filepath.Join(runDir, "lock")
}

// related lists the other run directories that may have sessions of the same processes.
func related(runDir string) []string {
	dirs, _ := filepath.Glob(filepath.Join(runDir, JobsName, "*", InnerName)) // the pattern is right
	if host := outer(runDir); host != "" {
		dirs = append(dirs, host)
	}
	return dirs
}

// MakeSessionsDir makes the run directory, mode 0700 and owned by this user, and returns the directory
// of the sessions in it.
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

// IsForeign reports whether this program does not run as root and may not use the run directory. Then
// nothing in it is about what this program dumps.
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
