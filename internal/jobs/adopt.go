package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"

	"cucriu/hooks/checkpoint"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/files"
	"cucriu/internal/kit/proc"
)

// adoptedRecord makes the record of a job that runs already.
func adoptedRecord(o Options) (record, error) {
	r := record{Version: recordVersion, Name: o.Name, Dir: o.Dir, Adopted: true}
	if r.Name == "" {
		r.Name = filepath.Base(o.Dir)
	}
	line, err := proc.ReadText(fmt.Sprintf("/proc/%d/cmdline", o.Adopt))
	if err == nil {
		r.WorkDir, err = os.Readlink(fmt.Sprintf("/proc/%d/cwd", o.Adopt))
	}
	var status proc.Status
	if err == nil {
		status, err = proc.ReadStatus(o.Adopt)
	}
	var root proc.Ident
	if err == nil {
		root, err = proc.IdentOf(o.Adopt)
	}
	if err == nil {
		r.Begun, err = root.Began()
	}
	if errors.Is(proc.GoneOr(o.Adopt, err), proc.ErrGone) {
		return record{}, fmt.Errorf("--adopt %d: no such process", o.Adopt)
	}
	if err != nil {
		return record{}, fmt.Errorf("process %d cannot be adopted: %w", o.Adopt, err)
	}
	if len(line) == 0 {
		return record{}, fmt.Errorf("process %d cannot be adopted: it has no command line: it is a kernel thread, has ended, or is just being started", o.Adopt)
	}
	if len(status.UIDs) > 0 {
		r.User = strconv.Itoa(status.UIDs[0])
		if known, err := user.LookupId(r.User); err == nil {
			r.User = known.Username
		}
	}
	for word := range strings.SplitSeq(strings.TrimRight(string(line), "\x00"), "\x00") {
		r.Command = append(r.Command, proc.Printable(word)) // a program may write anything there
	}
	return r, nil
}

// adopt adopts a job that already runs. What could not resume from a checkpoint is
// refused before anything is touched.
func (s *starter) adopt(ctx context.Context) error {
	if s.Adopt == 0 {
		return fmt.Errorf("%s has ended, and there was no checkpoint of it yet: start it again, and adopt it again (--adopt PID)", s.record.Name)
	}
	// Of two that want it at the same time, the second sees what the first has noted.
	turn := flock.New(filepath.Join(s.hook.Config.RunDir, "adopting"))
	if _, err := turn.TryLockContext(ctx, adoptPause); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	defer turn.Close()
	root, err := proc.IdentOf(s.Adopt)
	if err == nil {
		err = s.refuseSupervised()
	}
	if err == nil {
		err = checkAdoptable(ctx, s.core)
	}
	if err == nil { // it may be another one than the one that has ended
		if s.record, err = adoptedRecord(s.Options); err == nil {
			err = s.record.write(s.Dir)
		}
	}
	if err != nil {
		return errors.Join(fmt.Errorf("process %d cannot be adopted, and was not touched: %w", s.Adopt, err), s.withdraw())
	}
	err = s.makeSandbox(func(dir, runDir string) (err error) {
		s.sandbox, err = sandbox.Adopt(ctx, dir, runDir, root, sandbox.Spec{HostDir: s.runDir, Fence: s.fence})
		return err
	})
	if err != nil {
		return err
	}
	s.tell(Event{Event: EventStarted, Message: fmt.Sprintf("%s: process %d is now supervised: %s", s.record.Name, s.Adopt, strings.Join(s.record.Command, " "))})
	return s.openRoot()
}

const adoptPause = 20 * time.Millisecond

// refuseSupervised refuses a process of a long job, which could otherwise be resumed from the checkpoints of two.
func (s *starter) refuseSupervised() error {
	l, meaning, err := Involving(s.hook.Config.RunDir, s.Adopt, true)
	if err != nil || l == nil || l.Dir == s.Dir { // this one's supervisor is below the shell that started it
		return err
	}
	return fault.New("it "+meaning, fmt.Sprintf("cucriu jobs show %s shows that; cucriu jobs stop %[1]s ends it, with a checkpoint", l.Name))
}

// checkAdoptable finds what keeps a job from being dumped as it runs, and from going on in a sandbox.
func checkAdoptable(ctx context.Context, s *core) error {
	findings, err := checkpoint.CheckDump(ctx, s.hook, s.Adopt, "", s.Criu)
	if err != nil {
		return err
	}
	if err := s.hook.Judge(findings).Err(); err != nil {
		return err
	}
	options, findings, err := checkpoint.CriuOptions(ctx, s.Adopt, s.Criu, true)
	if err != nil {
		return err
	}
	err = s.hook.Refuse(findings)
	if options.Terminal {
		err = errors.Join(err, errors.New("it has a terminal open, which it would not have when resumed from a checkpoint: "+
			"start it with its streams in files (nohup COMMAND <FILE >FILE 2>&1), or in tmux (cucriu run --help)"))
	}
	pids, treeErr := proc.Tree(s.Adopt)
	err = errors.Join(err, treeErr, files.Foresee(ctx, s.Adopt, s.files()))
	for _, pid := range pids {
		err = errors.Join(err, checkNamespaces(pid))
	}
	if session, _ := unix.Getsid(s.Adopt); session == 0 {
		err = errors.Join(err, errors.New("its session began outside this pid namespace, and criu cannot dump such a process: start it with setsid"))
	}
	return err
}

// checkNamespaces refuses a process of a container.
func checkNamespaces(pid int) error {
	var other []string
	for _, kind := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "time"} {
		ours, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			continue // the kernel has none
		}
		theirs, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "ns", kind))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return nil // it has ended
		}
		if err != nil {
			return err
		}
		if ours != theirs {
			other = append(other, kind)
		}
	}
	return refuseNamespaces(pid, other)
}

// refuseNamespaces refuses a process that has such namespaces of its own. criu gives a time namespace to all that it
// restores, and would give another one to what it restores in a sandbox, which has one.
func refuseNamespaces(pid int, kinds []string) error {
	switch {
	case len(kinds) == 0:
		return nil
	case slices.Equal(kinds, []string{"time"}):
		return fault.New(fmt.Sprintf("process %d has a time namespace of its own, as criu gives to what it restores, and cannot be adopted", pid),
			"cucriu dump makes a checkpoint of it; to make it a long job, end it, and start it with cucriu run")
	}
	return fmt.Errorf("process %d has namespaces of its own (%s), as in a container: run cucriu there, or have the container engine make the checkpoint", pid, strings.Join(kinds, ", "))
}
