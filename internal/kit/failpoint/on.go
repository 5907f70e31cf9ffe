//go:build failpoint

package failpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// Hit makes a step go wrong as it begins. $CUCRIU_FAILPOINT says which steps go wrong, and
// how, in the language of [Parse]. A mistake in it makes every step fail. watcher is the
// pid of the session's watcher, or 0 if there is none.
//
// If $CUCRIU_FAILPOINT_MARKS names a folder, each point fires only once, whichever process
// reaches it first, and leaves a file with its name there.
func Hit(ctx context.Context, step string, watcher int) error {
	points, err := Parse(os.Getenv("CUCRIU_FAILPOINT"))
	if err != nil {
		return err
	}
	if len(points[step]) == 0 || !mark(step) {
		return nil
	}
	for _, action := range points[step] {
		if err := act(ctx, watcher, action); err != nil {
			return fmt.Errorf("failpoint %s: %w", step, err)
		}
	}
	return nil
}

// mark reports whether a point is to fire, and records that it has fired.
func mark(step string) bool {
	dir := os.Getenv("CUCRIU_FAILPOINT_MARKS")
	if dir == "" {
		return true
	}
	f, err := os.OpenFile(filepath.Join(dir, step), os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false
	}
	return f.Close() == nil
}

func act(ctx context.Context, watcher int, action Action) error {
	switch action.Verb {
	case "error":
		return errors.New("as requested")
	case "hang":
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Hour):
			return nil
		}
	case "kill":
		pid := os.Getpid()
		if action.Argument != "" {
			if _, err := fmt.Sscan(action.Argument, &pid); err != nil {
				return err
			}
		}
		return killAndWait(pid)
	case "kill-criu":
		var criu, fd int
		if _, err := fmt.Sscanf(os.Getenv("CRTOOLS_IMAGE_DIR"), "/proc/%d/fd/%d", &criu, &fd); err != nil {
			return err
		}
		return killAndWait(criu)
	case "kill-watcher":
		return killAndWait(watcher)
	case "fill":
		return fill(action.Argument)
	case "continue":
		return continueAll(strings.Fields(action.Argument))
	case "remove":
		return removeAll(action.Argument)
	case "run":
		cmd := exec.Command(action.Argument)
		cmd.Env = append(os.Environ(), "CUCRIU_FAILPOINT=")
		return cmd.Run()
	}
	return fmt.Errorf("unknown action %q", action.Verb)
}

func killAndWait(pid int) error {
	process, err := proc.Open(pid)
	if err != nil {
		return err
	}
	defer process.Close()
	if err := process.Signal(unix.SIGKILL); err != nil {
		return err
	}
	for !process.Exiting() {
		time.Sleep(time.Millisecond)
	}
	// Do not wait long for its end: while criu traces a multi-threaded process, that does
	// not end.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = process.WaitExit(ctx)
	return nil
}

func continueAll(pids []string) error {
	for _, text := range pids {
		pid, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		if err := unix.Kill(pid, unix.SIGCONT); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// removeAll removes the files that match a pattern. It fails if there are none.
func removeAll(pattern string) error {
	files, err := filepath.Glob(pattern)
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("there is no %s", pattern)
	}
	for _, file := range files {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}

// fill takes all the room of a tmpfs, but only of one as small as the tests make. It
// renames the file that takes the room to ballast once there is no room left.
func fill(dir string) error {
	const tmpfs, largest = 0x01021994, 256 << 20 // magic number; bytes
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return err
	}
	if fs.Type != tmpfs || fs.Blocks*uint64(fs.Bsize) > largest {
		return fmt.Errorf("%s is not on a small tmpfs", dir)
	}
	ballast := filepath.Join(dir, "ballast")
	f, err := os.Create(ballast + ".growing")
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		if _, err := f.Write(make([]byte, 1<<20)); errors.Is(err, unix.ENOSPC) {
			return os.Rename(f.Name(), ballast)
		} else if err != nil {
			return err
		}
	}
}
