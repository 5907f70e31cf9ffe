package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
)

// Dir makes the run directory, 0700 and owned by us, and returns the
// folder of the sessions in it.
func Dir(runDir string) (string, error) {
	dir := filepath.Join(runDir, "sessions")
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

// IsForeign reports whether the run directory is out of this program's reach,
// which does not run as root: nothing in it is about what it dumps, and only a dump
// with CUDA needs it.
func IsForeign(runDir string) bool {
	if os.Geteuid() == 0 {
		return false
	}
	_, err := Dir(runDir)
	return errors.Is(err, os.ErrPermission)
}

// Path is where the session of a criu is, in the folder of the sessions.
func Path(sessions string, kind Kind, criu proc.Ident) string {
	return filepath.Join(sessions, fmt.Sprintf("%s-%d-%d", kind, criu.PID, criu.StartTime))
}

// BootID tells this boot of the host from others.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}
