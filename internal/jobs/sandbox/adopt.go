package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/records"
	"cucriu/internal/kit/self"
)

// An adopted job was not started by cucriu, and runs in no sandbox of ours until it resumes from a
// checkpoint. A keeper stands beside it as init does in a sandbox: it stays if the supervisor goes,
// records how the job has ended, and ends the job when another host takes it over.

// CommandKeep is the hidden command of a keeper.
const CommandKeep = "sandbox-keep"

// keeperKind says who the keeper is, which writes it.
var keeperKind = records.Kind[proc.Ident]{Name: "keeper.json", Version: 1}

// Adopt adopts a job that runs outside any sandbox. Its records are in dir, an empty
// folder; runDir is for the hook. spec has the fence and the job's folder in the run directory.
func Adopt(ctx context.Context, dir, runDir string, root proc.Ident, spec Spec) (*Sandbox, error) {
	boot, err := proc.BootID()
	if err != nil {
		return nil, err
	}
	p := &Sandbox{Dir: dir, Record: Record{BootID: boot, First: root, Root: root.PID, RunDir: runDir, Running: true, Adopted: &root}}
	if p.root, err = proc.Reopen(root); err != nil {
		return nil, err
	}
	// The record comes first: a job with one and no keeper is given a new keeper.
	spec.Adopted = &root
	err = specKind.Write(dir, spec)
	if err == nil {
		err = p.save()
	}
	if err == nil {
		err = p.Keep(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// IsAdopted reports whether the job was adopted, and runs in no sandbox.
func (p *Sandbox) IsAdopted() bool { return p.Adopted != nil }

// AdoptedRuns reports whether the job was adopted, and its root process has not ended.
func (p *Sandbox) AdoptedRuns() bool { return p.root != nil && !p.root.Exiting() }

// attachAdopted finds an adopted job, and its keeper if that is there.
func (p *Sandbox) attachAdopted() (_ *Sandbox, err error) {
	if p.Adopted.Elsewhere() {
		// Its keeper may be gone although the job is not.
		if exit, err := readExit(p.Dir); err != nil || exit == nil {
			return nil, errors.Join(ErrElsewhere, err)
		}
		return nil, ErrGone
	}
	if p.root, err = proc.Reopen(*p.Adopted); err != nil && !errors.Is(err, proc.ErrGone) {
		return nil, err
	}
	if err := p.openKeeper(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if p.root == nil && p.init == nil {
		return nil, ErrGone
	}
	return p, nil
}

// openKeeper opens the keeper of the job. It is no error if there is none.
func (p *Sandbox) openKeeper() error {
	id, err := keeperKind.Read(p.Dir)
	if err == nil {
		p.init, err = proc.Reopen(id)
	}
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, proc.ErrGone) {
		p.init = nil
		return nil
	}
	return err
}

// keeperPatience is how long a keeper may take to begin.
const keeperPatience = 10 * time.Second

// Keep sees to it that an adopted job has a keeper.
func (p *Sandbox) Keep(ctx context.Context) error {
	if !p.IsAdopted() || p.init != nil {
		return nil
	}
	said, err := os.Create(filepath.Join(p.Dir, "stderr"))
	if err != nil {
		return err
	}
	defer said.Close()
	cmd := self.Command(CommandKeep, p.Dir)
	cmd.Dir, cmd.Stderr = "/", said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("keeper of the job: %w", err)
	}
	go func() { _ = cmd.Wait() }() // it lives as long as the job
	for begin := time.Now(); time.Since(begin) < keeperPatience && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		if err := p.openKeeper(); err != nil || p.init != nil {
			return err
		}
	}
	text, _ := os.ReadFile(said.Name())
	return errors.Join(context.Cause(ctx), fmt.Errorf("the job's keeper process did not start: %s", text))
}

// killAdopted ends an adopted job and its keeper.
func (p *Sandbox) killAdopted() error {
	if p.root != nil {
		if err := killTree(p.root); err != nil {
			return err
		}
	}
	if p.init == nil {
		return nil
	}
	if err := proc.SignalAll(unix.SIGKILL, p.init); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := p.init.WaitExit(ctx); err != nil {
		return fmt.Errorf("the keeper, %v, was killed and has not ended: %w", p.init, err)
	}
	return nil
}

// killTree ends a process and all its descendants.
func killTree(root *proc.Process) error {
	return proc.KillTree(&root.Ident, nil, func(p *proc.Process) bool { return !p.Alive() })
}

// Keep is the keeper of an adopted job, until it is killed.
func Keep(dir string) error {
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT)
	alive, err := holdAlive(dir) // fails if the job has a keeper
	if err != nil {
		return err
	}
	defer alive.Close()
	spec, err := specKind.Read(dir)
	if err != nil {
		return err
	}
	if spec.Adopted == nil {
		return errors.New("this command is only for the keeper of an adopted job")
	}
	known, err := holdAlive(spec.HostDir)
	if err != nil {
		return err
	}
	defer known.Close()
	self, err := proc.IdentOf(os.Getpid())
	if err == nil {
		err = keeperKind.Write(dir, self)
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

// tellEnd records the end of the root process. A full disk must not end the sandbox, or the job's
// children with it: there may be room later.
func tellEnd(dir string, exit Exit) {
	for exitKind.Write(dir, exit) != nil {
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
