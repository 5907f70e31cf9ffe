package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/job"
	"cucriu/internal/kit/first"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/self"
)

var (
	// ErrGone says that a sandbox is no more.
	ErrGone = errors.New("the job's sandbox is gone")
	// ErrElsewhere says that a sandbox was made from another pid namespace of this host, where
	// it may still be.
	ErrElsewhere = errors.New("the job may still run on this host, in another container or pid namespace")
	// ErrCopied says that the records are a copy, and the job runs in the sandbox that the
	// original is about.
	ErrCopied = errors.New("this is a copy of the directory of a running job: use the original, or end the job first")
)

// Sandbox is the sandbox of a job, seen from outside.
type Sandbox struct {
	Record
	Dir  string        // of its records
	Note string        // of what the job has to do without, and of what has run before it
	init *proc.Process // of an adopted job, its keeper; nil if that has gone
	root *proc.Process // of an adopted job; nil if it has ended

	mutex sync.Mutex // of changes of the record
}

// New makes a sandbox that keeps its records in dir, an empty folder. runDir is for the hook in the
// sandbox. If the sandbox is to start a job and cannot, the error is a [job.NotStartedError].
func New(ctx context.Context, dir, runDir string, spec Spec) (*Sandbox, error) {
	if err := specKind.Write(dir, spec); err != nil {
		return nil, err
	}
	said, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		return nil, err
	}
	defer said.Close()
	answer, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer answer.Close()
	heard, recorded, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, theirs.Close())
	}
	defer recorded.Close()
	cmd := self.Command(CommandUnshare, dir)
	cmd.Stderr = said
	cmd.ExtraFiles = []*os.File{theirs, heard} // become readyFD and goFD
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	theirs.Close()
	heard.Close()
	if err != nil {
		return nil, fmt.Errorf("make a sandbox for the job: %w", err)
	}
	ended := make(chan struct{})
	go func() { // it lives as long as the sandbox
		defer close(ended)
		_ = cmd.Wait()
	}()
	stop := context.AfterFunc(ctx, func() { _ = answer.SetReadDeadline(time.Now()) })
	defer stop()
	var r ready
	if err := json.NewDecoder(answer).Decode(&r); err != nil {
		_ = cmd.Process.Kill() // init ends when it finds nobody to tell
		text, _ := os.ReadFile(said.Name())
		return nil, fmt.Errorf("make a sandbox for the job: %w: %s", err, strings.TrimSpace(string(text)))
	}
	if r.Status != 0 || r.Error != "" { // until it has ended, it counts as the job
		select {
		case <-ended:
		case <-time.After(time.Minute):
		}
	}
	if r.Status != 0 {
		return nil, &job.NotStartedError{Err: fmt.Errorf("%s", r.Error), Status: r.Status}
	}
	if r.Error != "" {
		return nil, fmt.Errorf("make a sandbox for the job: %s", r.Error)
	}
	p, err := record(dir, cmd.Process.Pid, Record{
		Root: r.Root, RunDir: runDir, Running: spec.Start != nil, OwnNetwork: spec.OwnNetwork || spec.Network != "",
	})
	if err != nil {
		return nil, err
	}
	p.Note = r.Note
	if _, err := recorded.Write([]byte{1}); err != nil {
		return nil, errors.Join(fmt.Errorf("make a sandbox for the job: %w", err), p.Kill(), p.Close())
	}
	return p, nil
}

// record records who init is: the only child of the process that made the namespaces.
func record(dir string, parent int, r Record) (*Sandbox, error) {
	children, err := proc.Children(parent)
	if err != nil {
		return nil, err
	}
	if len(children) != 1 {
		return nil, fmt.Errorf("make a sandbox for the job: process %d has the children %v", parent, children)
	}
	init, err := proc.Open(children[0])
	if err != nil {
		return nil, err
	}
	p := &Sandbox{Dir: dir, init: init, Record: r}
	p.First = init.Ident
	p.BootID, err = proc.BootID()
	if err == nil {
		err = p.save()
	}
	if err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	return p, nil
}

// Attach finds the sandbox that keeps its records in dir. It fails with [ErrGone] if there is none
// any more.
func Attach(dir string) (*Sandbox, error) {
	r, err := recordKind.Read(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, awaitUnrecorded(dir)
	}
	if err != nil {
		return nil, err
	}
	p := &Sandbox{Dir: dir, Record: r}
	boot, err := proc.BootID()
	if err != nil {
		return nil, err
	}
	if boot != p.BootID {
		return nil, ErrGone
	}
	if p.IsAdopted() {
		return p.attachAdopted()
	}
	if p.First.Elsewhere() {
		if alive, known := IsAlive(dir); known && !alive {
			return nil, ErrGone
		}
		return nil, ErrElsewhere
	}
	p.init, err = proc.Reopen(p.First)
	alive, known := IsAlive(dir)
	switch {
	case errors.Is(err, proc.ErrGone) && alive: // a time namespace shows other start times
		return nil, ErrElsewhere
	case errors.Is(err, proc.ErrGone):
		return nil, ErrGone
	case err != nil:
		return nil, err
	case p.init.Exiting():
		if err := awaitEnd(p.init); err != nil {
			return nil, errors.Join(fmt.Errorf("the job's sandbox is ending: %w", err), p.Close())
		}
		return nil, errors.Join(ErrGone, p.Close())
	case known && !alive:
		return nil, errors.Join(ErrCopied, p.Close())
	}
	return p, nil
}

// Init identifies the first process of the sandbox, or the root process of an adopted job.
func (p *Sandbox) Init() proc.Ident {
	if p.IsAdopted() {
		return *p.Adopted
	}
	return p.init.Ident
}

// Command prepares a command that runs in the sandbox, with the hook's run directory there.
func (p *Sandbox) Command(ctx context.Context, args ...string) *exec.Cmd {
	if !p.IsAdopted() {
		enter := []string{"nsenter", "--target", strconv.Itoa(p.init.PID), "--pid", "--mount"}
		if _, err := os.Stat("/proc/self/ns/time"); err == nil {
			enter = append(enter, "--time")
		}
		if p.OwnNetwork {
			enter = append(enter, "--net")
		}
		args = slices.Concat(enter, []string{"--"}, args)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "CUCRIU_RUN_DIR="+p.RunDir)
	cmd.Dir = "/"
	// Signals to the group of the supervisor (Ctrl-C, timeout(1)) are for the supervisor alone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// OpenRoot opens the job's root process, by its pid outside. It fails with [proc.ErrGone] if there is
// none, or if it has ended.
func (p *Sandbox) OpenRoot() (*proc.Process, error) {
	if p.IsAdopted() {
		return proc.Reopen(*p.Adopted)
	}
	tree, err := proc.Tree(p.init.PID)
	if err != nil {
		return nil, err
	}
	for _, pid := range tree[1:] {
		status, err := proc.ReadStatus(pid)
		if err != nil {
			continue // it has ended
		}
		if status.ImagePID() == p.Root {
			return proc.Open(pid)
		}
	}
	// Who is not found counts as ended, and what is left of the job is killed: its own /proc must agree.
	status, err := os.ReadFile(p.InsidePath(filepath.Join("/proc", strconv.Itoa(p.Root), "status")))
	if err == nil && !bytes.Contains(status, []byte("\nState:\tZ")) {
		return nil, fmt.Errorf("process %d of the sandbox is there, but is no descendant of process %d, its init", p.Root, p.init.PID)
	}
	return nil, fmt.Errorf("process %d of the sandbox: %w", p.Root, proc.ErrGone)
}

// OpenCommand opens the process of the job's command, whose root process is given: that itself, unless it is
// a first process of ours. It fails with [proc.ErrGone] if the command has ended.
func (p *Sandbox) OpenCommand(root *proc.Process) (*proc.Process, error) {
	status, err := proc.ReadStatus(root.PID)
	if err != nil {
		return nil, err
	}
	command, is := first.Of(status.Name)
	if !is || p.IsAdopted() {
		return proc.Open(root.PID)
	}
	children, err := proc.Children(root.PID)
	if err != nil {
		return nil, err
	}
	for _, pid := range children {
		if status, err := proc.ReadStatus(pid); err == nil && status.ImagePID() == command {
			return proc.Open(pid)
		}
	}
	return nil, fmt.Errorf("the job's command: %w", proc.ErrGone)
}

// Alive reports whether the sandbox is there.
func (p *Sandbox) Alive() bool {
	return p.root != nil && p.root.Alive() || p.init != nil && p.init.Alive()
}

// Ends reports whether the sandbox has ended, or is ending: nothing in it can be served or restored any more.
func (p *Sandbox) Ends() bool {
	return (p.root == nil || p.root.Exiting()) && (p.init == nil || p.init.Exiting())
}

// Kill ends everything in the sandbox, and returns when it has ended.
func (p *Sandbox) Kill() error {
	if p.IsAdopted() {
		return p.killAdopted()
	}
	if err := p.init.Signal(unix.SIGKILL); err != nil && !errors.Is(err, proc.ErrGone) {
		return err
	}
	return awaitEnd(p.init)
}

// awaitEnd waits until init, which is killed or ends by itself, has ended: all processes of the sandbox
// are reaped then. An nsenter(1) stops itself with what it has started there, and does not reap it before
// it is continued. Who did that may have been killed.
func awaitEnd(init *proc.Process) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		look, over := context.WithTimeout(ctx, time.Second)
		err := init.WaitExit(look)
		over()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("%v was killed and has not ended: %w", init, err)
		}
		if err := continueParents(init.PID); err != nil {
			return err
		}
	}
}

// continueParents continues the parents that do not reap the zombies of a sandbox because they are stopped.
func continueParents(init int) error {
	namespace, err := proc.PIDNamespace(init)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	pids, err := proc.All()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		status, err := proc.ReadStatus(pid)
		if err != nil || !status.Ended || pid == init {
			continue
		}
		its, err := proc.PIDNamespace(pid)
		if err != nil || its != namespace {
			continue
		}
		continueParent(pid, status.PPID)
	}
	return nil
}

// continueParent continues the parent of a zombie if it is stopped, and still its parent once it is known
// by a pidfd: the pid may be another process's by now.
func continueParent(zombie, pid int) {
	parent, err := proc.Open(pid)
	if err != nil {
		return // it has ended
	}
	defer parent.Close()
	status, err := proc.ReadStatus(zombie)
	if err != nil || !status.Ended || status.PPID != pid {
		return
	}
	if stopped, err := proc.Stopped(pid); err == nil && stopped {
		_ = parent.Signal(unix.SIGCONT)
	}
}

// Close lets go of the sandbox, which stays.
func (p *Sandbox) Close() error {
	var err error
	for _, process := range []*proc.Process{p.init, p.root} {
		if process != nil {
			err = errors.Join(err, process.Close())
		}
	}
	return err
}

// InsidePath is by which path a path of the sandbox can be reached from outside.
func (p *Sandbox) InsidePath(path string) string {
	if p.IsAdopted() {
		return path
	}
	return filepath.Join("/proc", strconv.Itoa(p.init.PID), "root", path)
}

// HasOwnMount reports whether something is mounted on a directory in the sandbox that is not
// mounted on it outside.
func (p *Sandbox) HasOwnMount(dir string) bool {
	var here, inside unix.Stat_t
	if unix.Stat(p.InsidePath(dir), &inside) != nil {
		return false
	}
	return unix.Stat(dir, &here) != nil || here.Dev != inside.Dev
}
