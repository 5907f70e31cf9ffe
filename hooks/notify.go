package hooks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/checkpoint-restore/go-criu/v7/rpc"

	"cucriu/criuutil"
	"cucriu/hooks/preflight"
	"cucriu/internal/core/session"
	"cucriu/internal/core/stages"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/proc"
)

// Notify puts the protocol behind go-criu's Notify interface, for programs that drive criu
// with go-criu's own client:
//
//	opts := &rpc.CriuOpts{Pid: …, ImagesDirFd: …}
//	err := criu.MakeCriu().Dump(opts, hooks.NewNotify(ctx, hook, opts))
//
// That client does not pass on criu's pre-resume stage. A process that was stopped when it
// was dumped does not need it, because it is restored stopped. Every CUDA process is dumped
// so, except in a container on control groups v1. An image with processes that were not
// stopped is refused at pre-restore. Package checkpoint restores those, too.
//
// criu ignores what fails after its own part of a restore, but go-criu returns it as an
// error. The job has been ended then, and the image is unchanged.
type Notify struct {
	env  *session.Env
	ctx  context.Context
	opts *rpc.CriuOpts
	root int
	criu *proc.Ident // the criu that serves us; nil before the first stage
}

// NewNotify makes the callbacks for one dump or restore with these options. The
// Watcher of the hook must name a program that watches, such as cucriu-hook.
func NewNotify(ctx context.Context, hook *Hook, opts *rpc.CriuOpts) *Notify {
	return &Notify{env: session.Of(hook), ctx: ctx, opts: opts, root: int(opts.GetPid())}
}

// PreDump prepares the processes for criu's dump.
func (n *Notify) PreDump() error { return n.do(criuutil.StagePreDump) }

// PostDump notes that the image is complete.
func (n *Notify) PostDump() error { return n.do(criuutil.StagePostDump) }

// PreRestore makes the checks that need no process.
func (n *Notify) PreRestore() error {
	manifest, err := imagedir.ReadManifest(n.imageDir())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return preflight.AsRefusal(err)
	}
	for _, p := range manifest.Processes {
		if p.Running {
			return preflight.AsRefusal(fmt.Errorf("process %d (%s) was dumped from a container on control groups v1 and would run before its GPU state is restored: restore it with cucriu restore, or with cucriu-hook as criu's action script", p.PID, p.Name))
		}
	}
	return n.do(criuutil.StagePreRestore)
}

// SetupNamespaces notes the root task.
func (n *Notify) SetupNamespaces(pid int32) error { return n.doFor(criuutil.StageSetupNamespaces, pid) }

// PostSetupNamespaces needs nothing of us.
func (n *Notify) PostSetupNamespaces() error { return nil }

// PostRestore notes the root task.
func (n *Notify) PostRestore(pid int32) error { return n.doFor(criuutil.StagePostRestore, pid) }

// NetworkLock needs nothing of us.
func (n *Notify) NetworkLock() error { return nil }

// NetworkUnlock needs nothing of us.
func (n *Notify) NetworkUnlock() error { return nil }

// PostResume gives the processes their GPU state back and lets them run.
func (n *Notify) PostResume() error {
	// The processes are stopped, as they were dumped. The signals of pre-resume change
	// nothing about that, but the stage also finds the members of the session.
	if err := n.do(criuutil.StagePreResume); err != nil {
		return err
	}
	return n.do(criuutil.StagePostResume)
}

func (n *Notify) doFor(action string, pid int32) error {
	n.root = int(pid)
	return n.do(action)
}

func (n *Notify) do(action string) error {
	self, err := proc.IdentOf(os.Getpid())
	if err != nil {
		return err
	}
	criu, err := n.openCriu()
	if err != nil {
		return err
	}
	defer criu.Close()
	stage := stages.Stage{Action: action, ImageDir: n.imageDir(), Client: &self}
	if n.root > 0 {
		stage.InitPID = strconv.Itoa(n.root)
	}
	return stages.Serve(n.ctx, n.env, criu, stage)
}

// imageDir returns the path of the folder that the options name by its descriptor.
func (n *Notify) imageDir() string {
	if fd := n.opts.GetImagesDirFd(); fd >= 0 {
		if path, err := os.Readlink(filepath.Join("/proc/self/fd", strconv.Itoa(int(fd)))); err == nil {
			return path
		}
	}
	return n.opts.GetImagesDir()
}

// openCriu takes hold of the criu that serves us. go-criu does not name it: it is our child that works
// as criu swrk in the same image directory, which it closes later, so what was found is kept.
func (n *Notify) openCriu() (*criuutil.Criu, error) {
	if n.criu == nil {
		pid, err := criuutil.FindSwrk(os.Getpid(), n.imageDir())
		if err != nil {
			return nil, err
		}
		id, err := proc.IdentOf(pid)
		if err != nil {
			return nil, fmt.Errorf("criu: %w", err)
		}
		n.criu = &id
	}
	criu, err := criuutil.OpenCriu(n.criu.PID)
	if err != nil {
		return nil, err
	}
	if proc.Ident(criu.Ident) != *n.criu {
		return nil, errors.Join(fmt.Errorf("criu: %w", proc.ErrGone), criu.Close())
	}
	if err := criu.SetOptions(n.opts); err != nil {
		return nil, errors.Join(err, criu.Close())
	}
	return criu, nil
}
