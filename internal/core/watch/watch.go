package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/core/engine"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/proc"
)

// ServeStages does the stages of a restore for a hook that is inside a pid namespace. It calls over
// when a stage has brought the session to its end.
type ServeStages func(ctx context.Context, s *session.Session, over func()) (stop func(), err error)

// Run is the watcher of the session in dir, as a program: it waits until criu has ended, and then brings
// the session to a good end. It writes one byte to its standard output when it has hold of criu. It
// ignores the signals that end a service or a terminal session, because it holds a job that waits to be
// brought back. Its life is bounded by that of criu, or of the command to which the session belongs.
func Run(env *session.Env, dir string, serve ServeStages) error {
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGPIPE)
	err := watch(context.Background(), env, dir, serve)
	if err != nil {
		env.Log.Error("watcher", "error", err)
	}
	return err
}

func watch(ctx context.Context, env *session.Env, dir string, serve ServeStages) error {
	// The hook holds the lock of the session now. criu's identity does not change, so it may be read
	// all the same.
	read, err := journal.Read(dir)
	if err != nil {
		return err
	}
	s := env.TakeOn(read, session.ByWatcher)
	if err := s.Failpoint(ctx, string(s.Kind)+".watcher"); err != nil {
		return err
	}
	criu, err := proc.Reopen(s.Criu)
	if err != nil && !errors.Is(err, proc.ErrGone) {
		return err
	}
	over, isOver := context.WithCancel(ctx) // for a session that a stage has closed here
	defer isOver()
	if s.Kind == journal.KindRestore && criu != nil {
		if stop, err := serve(ctx, s, isOver); err == nil {
			defer stop()
		} else { // only a restore into an existing pid namespace needs it
			env.Log.Warn("the watcher cannot run stages in place of the hook", "error", err)
		}
	}
	if _, err = os.Stdout.Write([]byte{1}); errors.Is(err, unix.EPIPE) {
		err = nil // the hook was killed: then nobody but the watcher brings the session to its end
	}
	if err := errors.Join(err, os.Stdout.Close()); err != nil {
		return fmt.Errorf("report to the hook: %w", err)
	}
	var root *proc.Ident
	if criu != nil {
		defer criu.Close()
		if s.Kind == journal.KindRestore {
			root = awaitRoot(ctx, &s.Record, criu)
		}
		if err := awaitTurn(over, s, criu, root); err != nil && over.Err() == nil || ctx.Err() != nil {
			return fmt.Errorf("wait for criu: %w", err)
		}
	}
	if s, err = takeTurn(ctx, env, dir, root); err != nil {
		return err
	}
	defer s.Unlock()
	if s.Outcome == "" && len(s.Paused) > 0 {
		if err := awaitResume(ctx, s); err != nil {
			env.Log.Error("cannot wait for the container to be resumed", "session", filepath.Base(dir), "error", err)
		}
	}
	for pause := time.Second; ; pause = min(2*pause, time.Minute) {
		err := conclude(ctx, s)
		if err == nil && s.Held() && s.Hold.IfAbandoned != journal.StayHeld {
			// The holder lives. It decides, and needs the session for that.
			s.Unlock()
			if s, err = takeTurn(ctx, env, dir, root); err != nil {
				return err
			}
			pause = time.Second / 2
			continue
		}
		if err == nil {
			return nil
		}
		env.Log.Error("the job is not recovered yet", "session", filepath.Base(dir), "retry", pause, "error", err)
		s.NoteStuck(err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// takeTurn locks a session whose criu has ended, once it is the watcher's turn: while a holder of its
// processes lives, that decides.
func takeTurn(ctx context.Context, env *session.Env, dir string, root *proc.Ident) (*session.Session, error) {
	for {
		// Loading waits for the lock: a hook may have outlived criu.
		read, err := journal.Load(dir, true)
		if err != nil {
			return nil, err
		}
		s := env.TakeOn(read, session.ByWatcher)
		if s.Root == nil {
			s.Root = root
		}
		if !s.Held() {
			return s, nil
		}
		if gone, err := abandoned(&s.Record); err != nil || gone {
			return s, nil // what is wrong is said when the session is concluded
		}
		s.Unlock() // the holder decides, and needs it
		if err := session.AwaitExit(ctx, s.Hold.Holder); err != nil {
			return nil, fmt.Errorf("wait for the holder: %w", err)
		}
	}
}

// awaitTurn waits until criu has ended, or its restore has been cut off: criu lives on for as long as
// the job that it restored, unless it was told to detach, and does not notice that its hook has died.
func awaitTurn(ctx context.Context, s *session.Session, criu *proc.Process, root *proc.Ident) error {
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
		if !lookIfCutOff(s.Dir(), root) || beginsNextStage(criu.PID) {
			cutOff = 0
		} else if cutOff++; cutOff == 20 { // two seconds: long enough for criu to start the next stage
			return nil
		}
	}
	return ctx.Err()
}

// beginsNextStage reports whether criu runs, or has begun a program that is our hook, or is about to become it: on a
// busy machine that takes a while.
func beginsNextStage(criu int) bool {
	stat, err := proc.ThreadStat(criu, criu)
	if err != nil || stat.State != "S" {
		return err == nil
	}
	children, err := proc.Children(criu)
	if err != nil {
		return false
	}
	programs := []string{Executable(criu), Executable(os.Getpid())}
	return slices.ContainsFunc(children, func(pid int) bool { return slices.Contains(programs, Executable(pid)) })
}

// lookIfCutOff reports whether criu has done its part of a restore and no hook is at work on ours. It
// also notes what criu has created until now.
func lookIfCutOff(dir string, root *proc.Ident) bool {
	s, err := journal.Load(dir, false)
	if err != nil {
		return false
	}
	defer s.Unlock()
	if s.Kind != journal.KindRestore || s.Outcome != "" {
		return false
	}
	// If criu is killed, any of these processes may end by itself. Its children could then not be found
	// any more when it is time to end them, and would hold pids of the image.
	if s.Root == nil {
		s.Root = root
	}
	hasMore := s.Root != nil && session.NoteTree(&s.Record)
	if session.NoteResident(&s.Record) || hasMore {
		_ = s.Save() // the next look tries again
	}
	return criuIsThrough(&s.Record)
}

// criuIsThrough reports whether criu has let go of the processes that it restored, with all of them
// held: by our SIGSTOP or, where somebody has ended that, by being parked.
func criuIsThrough(s *journal.Record) bool {
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

// Executable returns the path of a process's program, "" if it cannot be told.
func Executable(pid int) string {
	path, _ := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
	return path
}

// A paused container is one whose control group the engine has frozen. The driver can do nothing with
// frozen processes, so the hook thaws them, and freezes them again while the engine still waits for
// criu. Once criu has ended, the engine may resume the container at any moment, and only while it is
// frozen. So the watcher never thaws it: it waits for the engine to do so, and then brings the GPU
// state back.

// awaitResume waits until the engine has resumed a paused container or ended it. It puts the freeze
// back if the hook was cut off before it could.
func awaitResume(ctx context.Context, s *session.Session) error {
	if err := session.StopMembers(&s.Record); err != nil {
		return err
	}
	if !s.Refrozen() { // once it is, the engine may have thawed it since
		freezing, cancel := context.WithTimeout(ctx, s.Env.Config.Lock.Timeout)
		defer cancel()
		if err := engine.FreezeAll(freezing, s.Paused); err != nil {
			return err
		}
	}
	for pause := time.Millisecond; slices.ContainsFunc(s.Members, journal.Member.Alive) && ctx.Err() == nil; pause = min(2*pause, 50*time.Millisecond) {
		if still, err := proc.FrozenOf(s.Paused); err != nil || len(still) == 0 {
			if err != nil {
				return err
			}
			break
		}
		if s.Message == "" {
			s.Message = "the container is paused as it was before the dump; its GPU state is restored when it is resumed"
			s.Env.Log.Info(s.Message, "session", s.Name())
			if err := s.Save(); err != nil {
				return err
			}
		}
		time.Sleep(pause) // a v1 freezer has no event to wait for
	}
	s.Paused = nil // whatever freezes it from now on is not ours to put back
	return errors.Join(s.Save(), ctx.Err())
}
