package sandbox

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/durable"
	"cucriu/internal/proc"
)

// Keep is the keeper of an adopted job, until it is killed.
func Keep(dir string) error {
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT)
	alive, err := holdAlive(dir) // fails if the job has a keeper
	if err != nil {
		return err
	}
	defer alive.Close()
	var spec Spec
	if err := durable.ReadJSON(filepath.Join(dir, specName), &spec); err != nil {
		return err
	}
	if spec.Adopted == nil {
		return errors.New("this is a command for the keeper of an adopted job")
	}
	known, err := holdAlive(spec.HostDir)
	if err != nil {
		return err
	}
	defer known.Close()
	self, err := proc.IdentOf(os.Getpid())
	if err == nil {
		err = durable.WriteJSON(filepath.Join(dir, keeperName), self)
	}
	if err != nil {
		return err
	}
	root, err := proc.Reopen(*spec.Adopted)
	switch {
	case errors.Is(err, proc.ErrGone):
		tellEnd(dir, Exit{At: time.Now().UTC(), Unknown: true})
	case err != nil:
		return err
	default:
		go func() {
			_ = root.WaitExit(context.Background())
			tellEnd(dir, endOf(root))
		}()
	}
	spec.Fence.watch()
	if root == nil {
		return nil
	}
	return killTree(root)
}

// tellEnd records the end of an adopted job, as soon as there is room for it.
func tellEnd(dir string, exit Exit) {
	for writeExit(dir, exit) != nil {
		time.Sleep(time.Second)
	}
}

// reapPatience is how long to wait until the kernel tells how a process has ended. Some tell only
// before its parent has waited for it, others before and after, and none in between.
const reapPatience = time.Second

// endOf finds out how a process has ended that is not our child.
func endOf(p *proc.Process) Exit {
	exit := Exit{At: time.Now().UTC()}
	for begin := time.Now(); time.Since(begin) < reapPatience; time.Sleep(10 * time.Millisecond) {
		if status, is := p.EndStatus(); is {
			exit.Status = status
			return exit
		}
	}
	exit.Unknown = true
	return exit
}
