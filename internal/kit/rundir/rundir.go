// Package rundir knows the run directory: what it is made of, and who may use it. It must not know what lies in it.
package rundir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/fault"
)

// Folders in the run directory: of the sessions, and of the long jobs. Each long job has a folder there, and in that,
// called Inner, the run directory of its sandbox. Host and sandbox see both.
const (
	Sessions = "sessions"
	Jobs     = "jobs"
	Inner    = "run"
)

// MakeSessions makes the run directory, mode 0700 and owned by this user, and returns the directory
// of the sessions in it.
func MakeSessions(runDir string) (string, error) {
	dir := filepath.Join(runDir, Sessions)
	err := os.MkdirAll(dir, 0o700)
	if errors.Is(err, unix.ENOTDIR) {
		return "", fault.Because(err, fmt.Sprintf("run directory %s is not a directory", runDir), "set CUCRIU_RUN_DIR to another one")
	}
	if readOnly := unix.Access(dir, unix.W_OK); err == nil && errors.Is(readOnly, unix.EROFS) {
		err = &os.PathError{Op: "write", Path: dir, Err: readOnly}
	}
	if err != nil {
		return "", fmt.Errorf("run directory: %w: set CUCRIU_RUN_DIR to a writable directory", err)
	}
	for _, d := range []string{runDir, dir} {
		var stat unix.Stat_t
		if err := unix.Lstat(d, &stat); err != nil {
			return "", fmt.Errorf("run directory %s: %w", d, err)
		}
		if stat.Mode&unix.S_IFMT != unix.S_IFDIR || int(stat.Uid) != os.Geteuid() {
			return "", fault.Because(os.ErrPermission, fmt.Sprintf("run directory %s is not a directory of user %d", d, os.Geteuid()), "set CUCRIU_RUN_DIR to another one")
		}
		if stat.Mode&0o022 != 0 {
			return "", fault.Because(os.ErrPermission, fmt.Sprintf("run directory %s has mode %04o", d, stat.Mode&0o7777), "chmod 0700 "+d)
		}
	}
	return dir, nil
}

// Make makes a directory in the run directory, for other things than sessions.
func Make(runDir, name string) (string, error) {
	if _, err := MakeSessions(runDir); err != nil {
		return "", err
	}
	dir := filepath.Join(runDir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("run directory: %w", err)
	}
	return dir, nil
}

// IsForeign reports whether this program does not run as root and may not use the run directory. Then
// nothing in it is about what this program dumps.
func IsForeign(runDir string) bool {
	if os.Geteuid() == 0 {
		return false
	}
	_, err := MakeSessions(runDir)
	return errors.Is(err, os.ErrPermission)
}
