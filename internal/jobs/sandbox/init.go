package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/job"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/netns"
	"cucriu/internal/kit/proc"
)

// ready is what init says when the sandbox is ready, or cannot be made.
type ready struct {
	Root   int    `json:"root,omitempty"`
	Note   string `json:"note,omitempty"`
	Error  string `json:"error,omitempty"`
	Status int    `json:"status,omitempty"` // the exit status for the error
}

// Init is the first process of a sandbox. It starts the job, if it is to, and reaps whatever ends
// in the sandbox until it is killed. It returns only if it cannot begin.
func Init(dir string) error {
	// Caught, and not ignored: the job would ignore them as well.
	signal.Reset()
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGPIPE)
	answer, recorded := os.NewFile(readyFD, "ready"), os.NewFile(goFD, "go")
	alive, err := holdAlive(dir)
	if err != nil {
		return err
	}
	defer alive.Close()
	spec, err := specKind.Read(dir)
	if err != nil {
		return err
	}
	ctx, gone := context.WithCancelCause(context.Background())
	defer gone(nil)
	heard := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(recorded, make([]byte, 1))
		if err != nil {
			err = fmt.Errorf("the program that made the sandbox has gone: %w", err)
			gone(err)
		}
		heard <- err
	}()
	var begun begun
	known, err := holdAlive(spec.HostDir)
	if err == nil {
		defer known.Close()
		begun, err = begin(ctx, dir, spec)
	}
	r := ready{Root: begun.root, Note: begun.note}
	if err != nil {
		r.Error = err.Error()
		if failed := new(job.NotStartedError); errors.As(err, &failed) {
			r.Error, r.Status = failed.Err.Error(), failed.Status
		}
	}
	if sayErr := errors.Join(json.NewEncoder(answer).Encode(r), answer.Close()); err == nil {
		err = sayErr
	}
	if err != nil {
		return err
	}
	if err := <-heard; err != nil {
		return err
	}
	go func() {
		begun.fence.watch()
		os.Exit(1) // and the sandbox ends
	}()
	if begun.console != nil {
		go begun.console.run()
	}
	return begun.reap(dir)
}

// begun is what init has to look after.
type begun struct {
	fence   Fence
	root    int      // pid of the job's root process
	note    string   // of what has run before the job
	console *console // nil if the job has no terminal
}

// begin makes what is inside a sandbox, and starts the job there if that is to be started.
func begin(ctx context.Context, dir string, spec Spec) (b begun, err error) {
	if os.Getpid() != 1 {
		return b, errors.New("this command is only for the first process of a job's sandbox")
	}
	b = begun{fence: spec.Fence, root: spec.Root}
	if err := furnish(ctx, dir, spec, &b.note); err != nil {
		return b, err
	}
	if spec.Terminal != nil {
		if b.console, err = newConsole(dir, *spec.Terminal); err != nil {
			return b, err
		}
	}
	if spec.Start != nil && spec.Start.Before != nil {
		note, err := spec.Start.Before.Run(ctx)
		if err != nil {
			return b, &job.NotStartedError{Err: err, Status: job.StatusNotReady}
		}
		b.note = strings.Trim(b.note+"\n"+note, "\n")
	}
	if spec.Start != nil {
		b.root, err = spec.Start.start(b.console)
	}
	return b, err
}

// furnish mounts and hides what a sandbox has and has not. note gets what the job has to do without.
func furnish(ctx context.Context, dir string, spec Spec, note *string) error {
	if err := detach(); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, s := range spec.Shown { // first: the others may hide what is shown
		if err := s.mount(); err != nil && s.Optional {
			*note = fmt.Sprintf("the job has no %s: %v", s.At, err)
		} else if err != nil {
			return fmt.Errorf("show %s at %s: %w", s.Dir, s.At, err)
		}
	}
	if err := unix.Mount("tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return fmt.Errorf("mount /dev/shm: %w", err)
	}
	if spec.PrivateTmp {
		if err := unix.Mount("tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
			return fmt.Errorf("mount /tmp: %w", err)
		}
	}
	if spec.OwnTerminals {
		options := "newinstance,mode=0620,ptmxmode=0666,gid=5"
		if err := unix.Mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, options); err != nil {
			return fmt.Errorf("mount /dev/pts: %w", err)
		}
	}
	if spec.OwnNetwork {
		if err := netns.AddLoopback(spec.Addresses); err != nil {
			return err
		}
		if err := failpoint.Hit(ctx, "sandbox.addresses", 0); err != nil {
			return err
		}
	}
	if spec.Memory != "" {
		if err := mountMemory(spec.Memory); err != nil {
			return err
		}
	}
	hidden := make(map[string][]string)
	for _, path := range spec.Hide {
		hidden[filepath.Dir(path)] = append(hidden[filepath.Dir(path)], filepath.Base(path))
	}
	for parent, names := range hidden {
		if err := Hide(parent, names); err != nil {
			return fmt.Errorf("hide what is not the job's: %w", err)
		}
	}
	if len(hidden) > 0 {
		if err := KeepHidden(spec.Params, filepath.Join(dir, "params")); err != nil {
			return fmt.Errorf("hide what is not the job's: %w", err)
		}
	}
	if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(spec.FirstPID-1)), 0); err != nil {
		return fmt.Errorf("set the first pid: %w", err)
	}
	return recordMounts(dir)
}

// mount follows no symbolic link: the job's user may be able to put one in its place, and what is shown would be seen
// where programs of root look, which criu is.
func (s Shown) mount() error {
	dir, err := durable.OpenDir(s.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	at, err := durable.OpenDir(s.At)
	if err != nil {
		return err
	}
	defer at.Close()
	if err := unix.Mount(proc.PathIn(dir, ""), proc.PathIn(at, ""), "", unix.MS_BIND, ""); err != nil || !s.ReadOnly {
		return err
	}
	err = unix.MountSetattr(unix.AT_FDCWD, s.At, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	if errors.Is(err, unix.ENOSYS) { // before Linux 5.12
		err = remountReadOnly(s.At)
	}
	if err != nil { // the job must not write there
		err = errors.Join(err, unix.Unmount(s.At, unix.MNT_DETACH))
	}
	return err
}

// remountReadOnly makes a mount read-only. It names the others of its flags, which would go otherwise.
func remountReadOnly(at string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(at, &fs); err != nil {
		return err
	}
	kept := uintptr(fs.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	return unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|kept, "")
}

// mountMemory mounts a file system that is as large as this host's memory. Whoever writes there sees
// to it that there is room.
func mountMemory(dir string) (err error) {
	for _, huge := range []string{",huge=always", ""} { // not every kernel has it
		err = unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700,size=100%"+huge)
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("mount %s: %w", dir, err)
}

// detach gives up what belongs to whoever makes the sandbox: its terminal and its open files. criu
// could not dump a job that had them.
func detach() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	for fd := range 3 {
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			return fmt.Errorf("standard streams: %w", err)
		}
	}
	if err := unix.CloseRange(readyFD, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close inherited descriptors: %w", err)
	}
	return nil
}

// start starts the job, at a terminal if there is one.
func (s *Start) start(at *console) (pid int, err error) {
	command := job.Command{Args: s.Args, Env: s.Env, Dir: s.Dir, User: s.User, First: s.First}
	if at != nil {
		command.Stdin, command.Stdout, command.Stderr, command.Terminal = at.slave, at.slave, at.slave, true
	} else {
		output, err := os.OpenFile(s.Output, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			return 0, fmt.Errorf("output of the job: %w", err)
		}
		defer output.Close()
		command.Stdout, command.Stderr = output, output
	}
	if s.FileSize != nil {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, s.FileSize); err != nil {
			return 0, fmt.Errorf("file-size limit of the job: %w", err)
		}
	}
	started, err := job.Start(command)
	if err != nil {
		return 0, err
	}
	return started.PID, nil
}

// reap reaps until this process is killed, and records the end of the root process.
func (b begun) reap(dir string) error {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WALL|unix.WNOHANG, nil)
		switch {
		case err == nil && pid > 0:
			if pid == b.root && (status.Exited() || status.Signaled()) {
				go b.tellExit(dir, status)
			}
		case errors.Is(err, unix.EINTR):
		default: // none has ended, or there is none
			<-ended
		}
	}
}

// tellExit records the end of the root process.
func (b begun) tellExit(dir string, status unix.WaitStatus) {
	if b.console != nil {
		b.console.drain()
	}
	tellEnd(dir, Exit{Status: status, At: time.Now().UTC()})
}

// JobOf returns the directory of the job of whose sandbox a process is the init; "" if it is another process.
func JobOf(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // nothing if it has ended
	args := strings.Split(string(text), "\x00")
	if len(args) < 3 || args[1] != CommandInit {
		return ""
	}
	return filepath.Dir(args[2])
}
