package hooks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/inject"
	"cucriu/criuutil/proc"
	"cucriu/hooks/journal"
)

// startWatcher starts the watcher of a session and waits until it holds on to
// criu: from then on the job comes back whoever is killed. It keeps the files open,
// from descriptor journal.FirstWatcherFD on.
func (h *Hook) startWatcher(s *session, files ...*os.File) error {
	log, err := os.OpenFile(filepath.Join(s.Dir(), "watcher.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("watcher: %w", err)
	}
	defer log.Close()
	ready, readyEnd, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("watcher: %w", err)
	}
	defer ready.Close()
	watches := h.Watcher
	if len(watches) == 0 {
		if watches, err = FindWatcher(); err != nil {
			return err
		}
	}
	cmd := exec.Command(watches[0], append(slices.Clone(watches[1:]), s.Dir())...)
	// Its own session and its own output: it outlives criu, whose log may be a
	// pipe that somebody reads to its end.
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = "/", readyEnd, log, files
	err = cmd.Start()
	readyEnd.Close()
	if err != nil {
		return fmt.Errorf("start the watcher: %w", err)
	}
	_ = ready.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(ready, make([]byte, 1)); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return fmt.Errorf("the watcher did not start (its log: %s): %w", log.Name(), err)
	}
	watcher, err := proc.Open(cmd.Process.Pid)
	if err != nil {
		return fmt.Errorf("the watcher ended as soon as it had started (its log: %s): %w", log.Name(), err)
	}
	defer watcher.Close()
	s.Watcher = &watcher.Ident
	if err := s.Save(); err != nil {
		return err
	}
	return cmd.Process.Release()
}

// Watch is the watcher: it waits until criu has ended, and then takes the
// session to a good end. It writes one byte to ready when it holds on to criu.
func (h *Hook) Watch(ctx context.Context, dir string, ready io.Writer) error {
	h = h.filled()
	// The hook holds the lock of the session now; criu's identity does not
	// change, so it may be read all the same.
	read, err := journal.Read(dir)
	if err != nil {
		return err
	}
	s := h.takeOn(read)
	if err := s.failpoint(ctx, string(s.Kind)+".watcher"); err != nil {
		return err
	}
	criu, err := proc.Reopen(s.Criu)
	if err != nil && !errors.Is(err, proc.ErrGone) {
		return err
	}
	over, isOver := context.WithCancel(ctx) // for a session that a stage has closed here
	defer isOver()
	if s.Kind == journal.KindRestore && criu != nil {
		if stop, err := h.serveStages(ctx, s, isOver); err == nil {
			defer stop()
		} else { // only a restore into an existing pid namespace needs it
			h.Log.Warn("the watcher does no stages in the hook's place", "error", err)
		}
	}
	if _, err := ready.Write([]byte{1}); err != nil {
		return fmt.Errorf("report to the hook: %w", err)
	}
	var root *proc.Ident
	if criu != nil {
		defer criu.Close()
		if s.Kind == journal.KindRestore {
			root = s.awaitRoot(ctx, criu)
		}
		if err := h.awaitTurn(over, s, criu, root); err != nil && over.Err() == nil || ctx.Err() != nil {
			return fmt.Errorf("wait for criu: %w", err)
		}
	}
	// The lock waits for a hook that outlived criu.
	if read, err = journal.Load(dir, true); err != nil {
		return err
	}
	s = h.takeOn(read)
	defer s.Unlock()
	s.By = byWatcher
	if s.Root == nil {
		s.Root = root
	}
	if s.Outcome == "" && len(s.Paused) > 0 {
		if err := h.awaitResume(ctx, s); err != nil {
			h.Log.Error("cannot wait for the container to be resumed", "session", filepath.Base(dir), "error", err)
		}
	}
	for pause := time.Second; ; pause = min(2*pause, time.Minute) {
		err := h.finish(ctx, s)
		if err == nil {
			return nil
		}
		h.Log.Error("the job is not back yet", "session", filepath.Base(dir), "retry", pause, "error", err)
		h.noteStuck(s, err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// awaitTurn waits until criu has ended, or its restore has been cut off: criu
// lives on for as long as the job that it restored, unless it was told to
// detach, and does not notice that its hook died.
func (h *Hook) awaitTurn(ctx context.Context, s *session, criu *proc.Process, root *proc.Ident) error {
	if s.Kind != journal.KindRestore {
		return criu.WaitExit(ctx)
	}
	for cutOff := 0; ctx.Err() == nil; {
		slice, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		err := criu.WaitExit(slice)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		if !h.isCutOff(s.Dir(), root) {
			cutOff = 0
		} else if cutOff++; cutOff == 20 { // two seconds: long enough for criu to start the next stage
			return nil
		}
	}
	return ctx.Err()
}

// isCutOff reports whether criu has done its part of a restore and no hook is
// at work on ours. It notes what criu has created until now.
func (h *Hook) isCutOff(dir string, root *proc.Ident) bool {
	read, err := journal.Load(dir, false)
	if err != nil {
		return false
	}
	s := h.takeOn(read)
	defer s.Unlock()
	if s.Kind != journal.KindRestore || s.Outcome != "" {
		return false
	}
	s.noteTree(root)
	return s.criuIsThrough()
}

// noteTree writes into the journal what criu has created below root. If criu is
// killed, any of it may end by itself, and its children are not to be found
// any more when it is time to end them; they would hold pids of the image.
func (s *session) noteTree(root *proc.Ident) {
	if s.Root == nil {
		s.Root = root
	}
	if s.Root != nil && s.lookAtTree() {
		_ = s.Save() // the next look tries again
	}
}

// lookAtTree adds what is below the root to the journal's tree, and reports
// whether anything was new.
func (s *session) lookAtTree() bool {
	process, err := proc.Reopen(*s.Root)
	if err != nil {
		return false
	}
	defer process.Close()
	pids, err := proc.Tree(s.Root.PID)
	if err != nil {
		return false
	}
	before := len(s.Tree)
	for _, pid := range pids {
		if process, err := proc.Open(pid); err == nil {
			process.Close()
			if !slices.Contains(s.Tree, process.Ident) {
				s.Tree = append(s.Tree, process.Ident)
			}
		}
	}
	return len(s.Tree) > before
}

// criuIsThrough reports whether criu has let go of the processes that it
// restored, with all of them held: by our SIGSTOP, or parked where somebody has
// ended that.
func (s *session) criuIsThrough() bool {
	if s.Step == journal.StepPostResume {
		return true
	}
	if s.Step != journal.StepPreResume || len(s.Members) == 0 {
		return false
	}
	for _, member := range s.Members {
		status, err := proc.ReadStatus(member.PID)
		if err != nil || status.TracerPID != 0 {
			return false
		}
		held, err := proc.Stopped(member.PID)
		if err == nil && !held {
			held, err = inject.LooksParked(member.PID)
		}
		if err != nil || !held {
			return false
		}
	}
	return true
}

// executable is the path of a process's program, "" if that cannot be told.
func executable(pid int) string {
	path, _ := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
	return path
}

// Recover takes every orphaned session (its criu has ended, and neither hook
// nor watcher is at work) to a good end. It returns the sessions that it took
// there, and the errors of those that it could not, which wrap [ErrNotBack].
func (h *Hook) Recover(ctx context.Context) ([]Status, error) {
	h = h.filled()
	sessions, err := journal.Dir(h.Config.RunDir)
	if err != nil {
		return nil, err
	}
	dirs, err := journal.Dirs(sessions)
	if err != nil {
		return nil, err
	}
	recovered := []Status{} // not nil: null is no list in JSON
	var errs []error
	for _, dir := range dirs {
		s, err := h.recoverOne(ctx, dir)
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: session %s: %w", ErrNotBack, filepath.Base(dir), err))
		}
		if s != nil {
			recovered = append(recovered, StatusOf(s.Session))
		}
	}
	return recovered, errors.Join(errs...)
}

// recoverFirst brings orphaned jobs back before another is begun: this one may
// be among them. One that does not come back at once is left to cucriu recover.
func (h *Hook) recoverFirst(ctx context.Context) {
	if journal.IsForeign(h.Config.RunDir) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, h.Config.Lock.Timeout)
	defer cancel()
	recovered, err := h.Recover(ctx)
	for _, s := range recovered {
		if s.Outcome == "" {
			continue // the error tells of it
		}
		h.Log.Info("brought an orphaned job to its end first", "session", s.Session, "outcome", s.Outcome)
	}
	if err != nil {
		h.Log.Warn("an earlier job is not back yet: cucriu status shows it", "error", err)
	}
}

func (h *Hook) recoverOne(ctx context.Context, dir string) (*session, error) {
	read, err := journal.Load(dir, false)
	if errors.Is(err, journal.ErrBusy) || errors.Is(err, os.ErrNotExist) {
		return nil, nil // at work, or killed before it wrote its journal and touched anything
	}
	if err != nil {
		return nil, err
	}
	s := h.takeOn(read)
	defer s.Unlock()
	s.By = byRecover
	if s.Outcome != "" || s.Suspended() && slices.ContainsFunc(s.Members, journal.Member.Alive) {
		return nil, nil
	}
	boot, err := journal.BootID()
	if err != nil {
		return nil, err
	}
	if s.BootID == boot { // else its identities mean nothing
		if owned, err := s.owned(); err != nil || owned {
			return nil, err
		}
	}
	if err := h.finish(ctx, s); err != nil {
		h.noteStuck(s, err)
		return s, err
	}
	return s, nil
}

// noteStuck notes why a job is not back yet, for whoever waits for it or asks.
func (h *Hook) noteStuck(s *session, err error) {
	if s.Outcome == "" {
		s.Stuck, s.Message = true, "not back yet: "+err.Error()
		h.note(s)
	}
}

// owned reports whether a session has somebody who will take it on: a criu that
// lives calls its hook again, and a watcher waits for its turn. Whoever else took it
// on would get between them. Of one in another pid namespace nobody here can tell.
func (s *session) owned() (bool, error) {
	owners := []proc.Ident{s.Criu}
	if s.Kind == journal.KindRestore && s.Step == journal.StepPostResume {
		owners = nil // criu calls nobody after that, and lives on for as long as the job
	}
	if s.Watcher != nil {
		owners = append(owners, *s.Watcher)
	}
	for _, id := range owners {
		owner, err := proc.Reopen(id)
		if err == nil {
			owner.Close()
			return true, nil
		}
		if errors.Is(err, proc.ErrElsewhere) {
			return true, nil
		}
		if !errors.Is(err, proc.ErrGone) {
			return false, err
		}
	}
	return false, nil
}

// finish takes a session whose criu has ended to a good end.
func (h *Hook) finish(ctx context.Context, s *session) error {
	if err := h.end(ctx, s); err != nil || s.Kind != journal.KindDump {
		return err
	}
	if err := s.removePages(); err != nil {
		h.Log.Warn("files of the fast lane are left in the image directory", "session", s.Name(), "error", err)
	}
	return s.dropPartial()
}

// end takes the processes of a session to a good end, and closes it.
func (h *Hook) end(ctx context.Context, s *session) error {
	if s.Outcome != "" {
		return s.close(s.Outcome, s.Message) // what could not be written before, the disk being full
	}
	boot, err := journal.BootID()
	if err != nil {
		return err
	}
	if s.BootID != boot {
		return s.close(journal.OutcomeGone, "the host has rebooted since")
	}
	switch s.Kind {
	case journal.KindRestore:
		return h.finishRestore(ctx, s)
	case journal.KindSuspend:
		return h.finishSuspend(ctx, s)
	}
	return h.finishDump(ctx, s)
}

// finishDump brings back what criu left alive, whether the dump failed, criu was
// killed, or the job was to run on.
func (h *Hook) finishDump(ctx context.Context, s *session) error {
	driver, targets, err := h.openTargets(s)
	if err != nil {
		return err
	}
	defer closeTargets(targets)
	if err := settle(ctx, targets); err != nil {
		return err
	}
	s.NoteCriu()
	alive := slices.DeleteFunc(slices.Clone(targets), func(t *target) bool { return !t.Alive() })
	dumped, sent := s.Step == journal.StepDumped, s.Step == journal.StepTransferring
	ended := (dumped || sent) && !s.Back // by criu, those that are gone; later they ended by themselves
	switch {
	case len(alive) == 0 && ended:
		// criu may have been cut off while it ended them: a part of the job must not
		// run beside its image. Under RPC it may have been told to leave them alive.
		leftAlive := s.LeaveRunning || s.LeaveStopped
		rest := s.end
		if leftAlive || s.RPC {
			rest = func() error { return h.bringUp(ctx, driver, s, nil) }
		}
		if err := rest(); err != nil {
			return err
		}
		switch {
		case sent:
			return s.close(journal.OutcomeGone, "the processes ended after criu had begun to send their pages: the job is where these have been fetched, if all of them have")
		case leftAlive:
			return s.close(journal.OutcomeGone, "criu dumped the processes into "+s.ImageDir+" and left them alive; they have ended since")
		}
		return s.close(journal.OutcomeDumped, "criu dumped the processes into "+s.ImageDir+" and ended them")
	case len(alive) == 0:
		if err := h.bringUp(ctx, driver, s, nil); err != nil { // what is left of the tree
			return err
		}
		return s.close(journal.OutcomeGone, "the processes ended by themselves or with a dump that failed; "+fate{ended: s.Members}.text(""))
	}
	if len(alive) < len(s.Members) && ended && !s.LeaveRunning && !s.LeaveStopped && !s.RPC {
		// criu was cut off while it ended them. The image is complete, and a
		// part of the job must not run beside it.
		if err := s.end(); err != nil {
			return err
		}
		if sent {
			return s.close(journal.OutcomeGone, "criu had sent all pages, and was cut off while it ended the processes: the job is where these have been fetched")
		}
		return s.close(journal.OutcomeDumped, "criu dumped the processes into "+s.ImageDir+" and was cut off while it ended them")
	}
	s.Back = true
	h.note(s)
	if err := h.bringUp(ctx, driver, s, alive); err != nil {
		return err
	}
	message := "criu did not complete the dump; "
	if sent {
		message = "criu did not send all pages of the job, and a restore that has begun to fetch them must not go on; "
	}
	if dumped {
		message = "criu dumped the processes into " + s.ImageDir + " and left them alive; "
	}
	outcome, livingDo := journal.OutcomeRunning, "runs on"
	if s.LeavesStopped() {
		outcome, livingDo = journal.OutcomeStopped, "is stopped"
	}
	_, err = s.closeAlive(outcome, message, livingDo)
	h.Log.Info(s.Message, "session", s.Name(), "outcome", s.Outcome, "processes", pidsOf(alive))
	return err
}

// settle waits until criu's hold on the processes is gone: those that it
// killed have ended, the others are not traced any more.
func settle(ctx context.Context, targets []*target) error {
	for _, t := range targets {
		for pause := time.Millisecond; t.Alive(); pause = min(2*pause, 100*time.Millisecond) {
			if t.Exiting() {
				if err := t.WaitExit(ctx); err != nil {
					return err
				}
				break
			}
			status, err := proc.ReadStatus(t.PID)
			if errors.Is(err, proc.ErrGone) || err == nil && status.TracerPID == 0 {
				break
			}
			if err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(pause):
			}
		}
	}
	return nil
}
