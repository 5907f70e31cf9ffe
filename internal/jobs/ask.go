package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/rundir"
)

// ErrNoSupervisor says that no supervisor on this host takes care of a job.
var ErrNoSupervisor = errors.New("no supervisor")

// noSupervisor returns [ErrNoSupervisor] for one job.
func noSupervisor(job Local) error {
	if job.lost != nil {
		return preflight.AsRefusal(job.lost)
	}
	meaning := "does not run on this host"
	remedy := "run this where it runs (cucriu jobs show says which host has it), or start it with the same cucriu run"
	switch job.State {
	case StateUnattended:
		if job.paused {
			meaning, remedy = "is paused, and has no supervisor", "run the same cucriu run command again, then cucriu jobs resume "+job.Name
			break
		}
		meaning, remedy = "runs without a supervisor", "run the same cucriu run command again to resume supervision"
	case StateUntold:
		meaning, remedy = "has ended since its supervisor had gone", untoldRemedy(job)
	case StateMoved:
		meaning, remedy = "has "+job.Describe(), "run this there"
	case StateStopped:
		meaning, remedy = "was stopped with cucriu jobs stop, and does not run", "to resume it, cucriu run --dir "+job.Dir
	case StateFinished:
		meaning, remedy = "has finished", "there is nothing to do"
	case StateDamaged:
		meaning, remedy = "does not run: its record or its checkpoints are damaged or missing", "cucriu jobs show "+job.Name+" says what"
	case StateEnded, StatePreempted, StateFailed, StateGone:
		meaning, remedy = "does not run: "+job.Describe(), "to resume it, cucriu run --dir "+job.Dir
	}
	if owner, err := store.OwnerOf(job.Dir); err == nil && job.State == StateIdle && owner.IsHere() {
		if moved := new(fault.Explained); errors.As(CheckRecord(job.Dir), &moved) { // such as a copy
			return preflight.AsRefusal(fault.Because(ErrNoSupervisor, moved.Meaning(), moved.Remedy()))
		}
	}
	return preflight.AsRefusal(fault.Because(ErrNoSupervisor, fmt.Sprintf("%s (%s) %s", job.Name, job.Dir, meaning), remedy))
}

func untoldRemedy(job Local) string {
	return fmt.Sprintf("the same cucriu run says how, and resumes it unless it has finished; to give it up, kill -9 %d, and cucriu jobs rm %s", job.Init.PID, job.Name)
}

// Ask asks the supervisor of a job of this host for something, and waits until it is done.
// progress is told what is under way; it may be nil. When ctx ends, Ask returns at once; what the
// supervisor has begun is still completed.
func Ask(ctx context.Context, runDir string, job Local, r Request, progress func(text string, expected time.Duration)) (Answer, error) {
	conn, err := dial(localDir(runDir, job.Dir))
	if err != nil {
		return Answer{}, noSupervisor(job)
	}
	defer conn.Close()
	if pid := stoppedListener(conn); pid != 0 {
		return Answer{}, preflight.AsRefusal(halted(job, pid))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go lookWhetherStopped(ctx, conn, func(pid int) { cancel(halted(job, pid)) })
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return Answer{}, fmt.Errorf("contact the supervisor of %s: %w", job.Name, err)
	}
	decoder := json.NewDecoder(conn)
	for {
		var a Answer
		err := decoder.Decode(&a)
		switch {
		case ctx.Err() != nil:
			return a, fmt.Errorf("%w: no longer waiting; the supervisor of %s still completes what it has begun", context.Cause(ctx), job.Name)
		case err != nil:
			return a, fmt.Errorf("the supervisor of %s ended before it answered, see cucriu status: %w", job.Name, err)
		case a.Progress != "":
			if progress != nil {
				progress(a.Progress, a.Expected)
			}
			continue
		case a.Ended:
			return a, endedError(a.Error)
		case a.Error != "" && a.Refused:
			return a, preflight.AsRefusal(errors.New(a.Error))
		case a.Error != "":
			return a, errors.New(a.Error)
		}
		return a, nil
	}
}

// dial connects to the supervisor that listens in a folder of the run directory.
func dial(folder string) (*net.UnixConn, error) {
	dir, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: proc.PathIn(dir, socketName), Net: "unix"})
}

// halted says that the supervisor of a job, this process, is stopped.
func halted(job Local, pid int) error {
	return fault.New(fmt.Sprintf("the cucriu run of %s, process %d, is stopped (as by Ctrl-Z)", job.Name, pid), HaltedRemedy(pid))
}

// HaltedRemedy says how a supervisor that is stopped continues.
func HaltedRemedy(pid int) string {
	return fmt.Sprintf("continue it with fg in its shell, or kill -CONT %d", pid)
}

// stoppedListener returns the process that listens at the other end if it is stopped, else 0. The kernel connects
// to it all the same.
func stoppedListener(conn *net.UnixConn) (pid int) {
	pid = peerOf(conn)
	if stopped, err := proc.Stopped(pid); pid == 0 || err != nil || !stopped {
		return 0
	}
	return pid
}

// peerOf returns the process that has opened the other end; 0 in a pid namespace that does not have it.
func peerOf(conn *net.UnixConn) (pid int) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(peer.Pid)
		}
	})
	return pid
}

// stopLook is how often to look whether a supervisor is stopped. One that is at two looks stays so until somebody continues it.
const stopLook = time.Second

func lookWhetherStopped(ctx context.Context, conn *net.UnixConn, stopped func(pid int)) {
	for times := 0; times < 2; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(stopLook):
		}
		pid := stoppedListener(conn)
		if times++; pid == 0 {
			times = 0
		} else if times == 2 {
			stopped(pid)
		}
	}
}

// notFound says that there is no such job, or more than one.
func notFound(meaning, remedy string) error { return preflight.AsRefusal(fault.New(meaning, remedy)) }

// Find finds a job by its directory or, on the host that runs it, by its name. What has a slash
// in it is a directory. It fails if the job's supervisor has another run directory. If that was removed, the job
// counts as running, but [Ask] cannot reach it.
func Find(runDir, arg string) (Local, error) {
	l, err := find(runDir, arg)
	if err != nil || l.PID != 0 || CheckRecord(l.Dir) != nil { // a copy names the process of another job
		return l, err
	}
	pid, isRemoved, err := unreachable(runDir, l.Name, l.Dir)
	if isRemoved {
		l.PID, l.State, l.lost = pid, StateRunning, err
		return l, nil
	}
	return l, preflight.AsRefusal(err)
}

// unreachable says why this run directory does not lead to the supervisor that a job has on this host: it has another
// one, or what it had there was removed. It returns nil if it cannot tell, or if there is none.
func unreachable(runDir, name, dir string) (pid int, isRemoved bool, err error) {
	owner, err := store.OwnerOf(dir)
	if err != nil || !owner.IsHere() {
		return 0, false, nil
	}
	other, isRemoved := runDirOf(owner.PID)
	meaning := fmt.Sprintf("%s (%s) runs here under process %d, ", name, dir, owner.PID)
	remedy := "set CUCRIU_RUN_DIR=" + other
	switch {
	case isRemoved:
		meaning += "but what it has in the run directory was removed: it can make no checkpoint any more, and nobody can " +
			"reach it"
		remedy = fmt.Sprintf("let it end, or kill -TERM %d, and resume it from its last checkpoint with the same "+
			"cucriu run", owner.PID)
	case other == "" || isSame(other, runDir):
		return 0, false, nil
	default:
		meaning += "with another run directory than " + runDir
	}
	return owner.PID, isRemoved, fault.Because(ErrNoSupervisor, meaning, remedy)
}

// runDirOf returns the run directory in which a supervisor holds its lock, and whether that was removed there; "" if it
// holds none.
func runDirOf(pid int) (dir string, isRemoved bool) {
	open, _ := proc.Descriptors(pid)
	for _, path := range open {
		path, isRemoved := strings.CutSuffix(path, " (deleted)")
		folder, name := filepath.Split(path)
		if jobs := filepath.Dir(filepath.Clean(folder)); name == claimName && filepath.Base(jobs) == rundir.Jobs {
			return filepath.Dir(jobs), isRemoved
		}
	}
	return "", false
}

func find(runDir, arg string) (Local, error) {
	if strings.ContainsRune(arg, filepath.Separator) || arg == "." || arg == ".." {
		return findDir(runDir, arg)
	}
	all, err := Locals(runDir)
	if err != nil {
		return Local{}, err
	}
	var named []Local
	var dirs []string
	for _, l := range all {
		if l.Name == arg {
			named, dirs = append(named, l), append(dirs, l.Dir)
		}
	}
	switch _, err := os.Stat(filepath.Join(arg, recordName)); {
	case len(named) == 1:
		return named[0], nil
	case len(named) > 1:
		return Local{}, notFound(fmt.Sprintf("%d jobs are named %s", len(named), arg), "give the directory, one of "+strings.Join(dirs, ", "))
	case err == nil:
		return findDir(runDir, arg)
	}
	return Local{}, notFound(fmt.Sprintf("no job on this host is named %q", arg), "see cucriu jobs list, or give the directory of the job")
}

// findDir finds the job of a directory. There may be several paths to it.
func findDir(runDir, dir string) (Local, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Local{}, err
	}
	r, err := loadRecord(filepath.Join(dir, recordName))
	if missing := new(fault.Explained); errors.Is(err, fs.ErrNotExist) && errors.As(err, &missing) {
		return Local{}, preflight.AsRefusal(err)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return Local{}, notFound(dir+" is not the directory of a job", "give the one that was passed to cucriu run --dir")
	}
	if err != nil {
		return Local{}, err
	}
	folder := localDir(runDir, dir)
	if _, err := os.Stat(r.Dir); errors.Is(err, fs.ErrNotExist) && r.Dir != "" { // moved, maybe under a job that runs
		if l, err := readLocal(localDir(runDir, r.Dir)); err == nil && (l.PID != 0 || l.alive) {
			folder = localDir(runDir, r.Dir)
		}
	}
	if l, err := readLocal(folder); err == nil {
		l.settle()
		one := []Local{l}
		noteSuspended(runDir, one)
		return one[0], nil
	}
	info, err := os.Stat(dir)
	if err != nil {
		return Local{}, err
	}
	all, err := Locals(runDir)
	if err != nil {
		return Local{}, err
	}
	for _, l := range all {
		if other, err := os.Stat(l.Dir); err == nil && os.SameFile(info, other) {
			return l, nil
		}
	}
	l := Local{Name: r.Name, Dir: dir}
	l.settle()
	return l, nil
}
