package hosts

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// readyFD is where init says what went wrong; nothing, if the host is ready.
const readyFD = 3

// runInit is the first process of a host. It makes the file system, and reaps.
func runInit() error {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	ready := os.NewFile(readyFD, "ready")
	if err := setUp(); err != nil {
		fmt.Fprint(ready, err)
		return err
	}
	if err := ready.Close(); err != nil {
		return err
	}
	for range children {
		for {
			var status unix.WaitStatus
			pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
			if pid == 0 || errors.Is(err, unix.ECHILD) {
				break
			}
			if err != nil && !errors.Is(err, unix.EINTR) {
				return err
			}
		}
	}
	return nil
}

func setUp() error {
	unix.CloseOnExec(readyFD)
	var s spec
	if err := json.Unmarshal([]byte(os.Getenv(specVariable)), &s); err != nil {
		return fmt.Errorf("%s: %w", specVariable, err)
	}
	if err := setClock(s.Clock); err != nil {
		return fmt.Errorf("set the clocks: %w", err)
	}
	if err := unix.Sethostname([]byte(s.Name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := s.mount(); err != nil {
		return err
	}
	return os.Chdir("/")
}

// setClock makes a time namespace for what enters the host. Init itself stays outside.
func setClock(ahead time.Duration) error {
	if ahead == 0 {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWTIME); err != nil {
		return err
	}
	seconds := ahead / time.Second
	return os.WriteFile("/proc/self/timens_offsets", fmt.Appendf(nil, "monotonic %d 0\nboottime %d 0\n", seconds, seconds), 0)
}
