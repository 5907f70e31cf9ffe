package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/core/journal"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/self"
)

// FindWatcher finds cucriu-hook beside this program or in /usr/libexec/cucriu, and in PATH only where
// neither has it, as for a program that embeds these packages. It returns the command that runs the
// watcher.
func FindWatcher() ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	const name, installed = "cucriu-hook", "/usr/libexec/cucriu"
	for _, path := range []string{filepath.Join(filepath.Dir(self), name), filepath.Join(installed, name), name} {
		if found, err := exec.LookPath(path); err == nil {
			return []string{found, "watch"}, nil
		}
	}
	return nil, fmt.Errorf("%s, which watches over a job during its dump, is neither beside %s nor in %s nor in PATH", name, self, installed)
}

// startPatience is how long a watcher may take to start.
const startPatience = time.Minute

// StartWatcher starts the watcher and waits until it has hold of criu. From then on the job is restored,
// whichever program is killed. The watcher keeps the files open, from descriptor journal.FirstWatcherFD
// on.
func (s *Session) StartWatcher(files ...*os.File) error {
	log, err := os.OpenFile(filepath.Join(s.Dir(), journal.WatcherLog), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("watcher: %w", err)
	}
	defer log.Close()
	if err := journal.LockLog(log); err != nil { // what the processes need on the GPUs is not seen by others then
		s.Env.Log.Debug("watcher", "error", err)
	}
	ready, readyEnd, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("watcher: %w", err)
	}
	defer ready.Close()
	watches := s.Env.Watcher
	if len(watches) == 0 {
		if watches, err = FindWatcher(); err != nil {
			return err
		}
	}
	cmd := exec.Command(watches[0], append(slices.Clone(watches[1:]), s.Dir())...)
	if watches[0] == self.Path {
		cmd.Args[0] = os.Args[0]
	}
	// The watcher gets its own session and its own output, because it outlives criu: criu's log may be
	// a pipe that somebody reads to its end.
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = "/", readyEnd, log, files
	err = cmd.Start()
	readyEnd.Close()
	if err != nil {
		return fmt.Errorf("start the watcher: %w", err)
	}
	_ = ready.SetReadDeadline(time.Now().Add(startPatience))
	if _, err := io.ReadFull(ready, make([]byte, 1)); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return fmt.Errorf("the watcher did not start (its log: %s): %w", log.Name(), err)
	}
	watcher, err := proc.IdentOf(cmd.Process.Pid)
	if err != nil {
		return fmt.Errorf("the watcher ended as soon as it had started (its log: %s): %w", log.Name(), err)
	}
	s.Watcher = &watcher
	if err := s.Save(); err != nil {
		return err
	}
	return cmd.Process.Release()
}

// KillWatcher kills the watcher of a session that has nothing left to wait for.
func KillWatcher(r *journal.Record) error {
	if r.Watcher == nil || r.Watcher.PID == os.Getpid() {
		return nil
	}
	return SignalKnown(unix.SIGKILL, *r.Watcher)
}

// awaitWatcher waits until the session's watcher has ended, and reports whether there was one to wait
// for.
func awaitWatcher(ctx context.Context, r *journal.Record) (bool, error) {
	if r.Watcher == nil {
		return false, nil
	}
	watcher, err := proc.Reopen(*r.Watcher)
	if errors.Is(err, proc.ErrGone) || errors.Is(err, proc.ErrElsewhere) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer watcher.Close()
	if err := watcher.WaitExit(ctx); err != nil {
		return false, fmt.Errorf("the watcher of an earlier dump into the same image directory does not end: %w", err)
	}
	return true, nil
}
