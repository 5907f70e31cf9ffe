// Package self is about this program. It starts it again: the file that runs, which another one may have replaced at
// its path since (an upgrade). And it limits the memory that it takes for a dump.
package self

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// Path leads every process to the file that it runs.
const Path = "/proc/self/exe"

// Name gives this program its name, although it was not started by it.
func Name(name string) {
	_ = os.WriteFile("/proc/self/comm", []byte(name), 0)
	if strings.HasPrefix(os.Args[0], "/proc/self/") {
		os.Args[0] = name
	}
}

// Command prepares a command that runs this program again.
func Command(args ...string) *exec.Cmd {
	cmd := exec.Command(Path, args...)
	cmd.Args[0] = os.Args[0]
	return cmd
}

// Open opens this program for another one that is to start it, and stays open in that. It returns the
// path by which that finds it.
func Open() (string, error) {
	fd, err := unix.Open(Path, unix.O_RDONLY, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: Path, Err: err}
	}
	return fmt.Sprintf("/proc/self/fd/%d", fd), nil
}
