//go:build failpoint

package hooks

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

	"cucriu/criuutil/proc"
)

// failpoint makes a step go wrong as it begins. $CUCRIU_FAILPOINT says what
// goes wrong where: "dump.lock=kill", several separated by commas. One point
// may have several actions, joined by "+":
//
//	error         the step fails
//	hang          the step lasts until its deadline, and fails then
//	kill          SIGKILL of this process
//	kill PID      SIGKILL of another process, until it runs no more
//	kill-criu     the same of the criu that runs the hook
//	kill-watcher  the same of the session's watcher
//	fill DIR      takes all the room in the small tmpfs that holds DIR
//	continue PID… SIGCONT from outside to those of these processes that are there
//	remove GLOB   removes files
//	run PROGRAM   runs a program to its end, in which no failpoint fires
//
// If $CUCRIU_FAILPOINT_MARKS names a folder, each point fires once, whoever
// comes by it, and leaves a file of its name there.
func failpoint(ctx context.Context, s *Session, step string) error {
	for _, point := range strings.Split(os.Getenv("CUCRIU_FAILPOINT"), ",") {
		name, actions, _ := strings.Cut(point, "=")
		if name != step || !mark(step) {
			continue
		}
		for _, action := range strings.Split(actions, "+") {
			if err := act(ctx, s, action); err != nil {
				return fmt.Errorf("failpoint %s: %w", step, err)
			}
		}
	}
	return nil
}

// mark reports whether a point is to fire, and notes that it has.
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

func act(ctx context.Context, s *Session, action string) error {
	verb, argument, _ := strings.Cut(action, " ")
	switch verb {
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
		if argument != "" {
			var err error
			if pid, err = strconv.Atoi(argument); err != nil {
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
		return killAndWait(s.Watcher.PID)
	case "fill":
		return fill(argument)
	case "continue":
		return continueAll(strings.Fields(argument))
	case "remove":
		return removeAll(argument)
	case "run":
		cmd := exec.Command(argument)
		cmd.Env = append(os.Environ(), "CUCRIU_FAILPOINT=")
		return cmd.Run()
	}
	return fmt.Errorf("unknown action %q", action)
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
	// For its end not long: a multi-threaded tracee of criu's keeps it waiting.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = process.WaitExit(ctx)
	return nil
}

func continueAll(pids []string) error {
	for _, text := range pids {
		pid, err := strconv.Atoi(text)
		if err == nil {
			err = unix.Kill(pid, unix.SIGCONT)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// removeAll removes files, and fails if there are none.
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

// fill takes all the room of a tmpfs, but of no larger one than a test makes. The
// file that takes it has the name ballast once there is no room.
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
