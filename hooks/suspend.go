package hooks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gofrs/flock"

	"cucriu/criuutil/proc"
	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
)

// stepSuspended is the step at which a session waits for its resume, with
// nobody at work on it and no watcher.
const stepSuspended = "suspended"

// suspended reports whether the session's processes are checkpointed because
// somebody asked for it: only [Hook.Resume] takes it on from there.
func (s *Session) suspended() bool {
	return s.Kind == KindSuspend && s.Step == stepSuspended && s.Outcome == ""
}

func (s *Session) suspendConflict() error {
	if s.suspended() {
		return fmt.Errorf("processes %v were suspended at %s: cucriu resume -p %d brings them back",
			pidsOfMembers(s.Members), s.Created.Local().Format(time.TimeOnly), s.Members[0].PID)
	}
	return fmt.Errorf("processes %v are being suspended or resumed by process %d (step %s): wait for it; if it is gone, cucriu resume -p %d brings them back",
		pidsOfMembers(s.Members), s.Criu.PID, s.Step, s.Members[0].PID)
}

// Suspend checkpoints processes in place, without criu: their GPU memory moves
// into host memory, and their GPUs are free. It goes the way of a dump (locked
// while they run, stopped, and only then checkpointed), because a thread that
// synchronized with the GPU would die. They are left stopped until
// [Hook.Resume]: a SIGCONT runs nothing of them, unless a warning says that one
// could not be parked. After an error, or if this program is killed, they run on.
func (h *Hook) Suspend(ctx context.Context, pids []int) (s *Session, err error) {
	d := &dump{Hook: h}
	defer func() {
		if err != nil {
			err = d.failed(err)
		}
		d.letGo()
	}()
	if err := d.take(ctx, pids); err != nil {
		return nil, err
	}
	findings, err := preflight.InspectNamed(ctx, d.driver, inspectedOf(d.members))
	if err != nil {
		return nil, err
	}
	if err := d.refuse(findings); err != nil {
		return nil, err
	}
	if err := d.requireRunning(ctx); err != nil {
		return nil, err
	}
	if d.session, err = h.journal(d.members, ""); err != nil {
		return nil, err
	}
	if err := h.startWatcher(d.session); err != nil {
		return nil, err
	}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"lock", d.lock},
		{"stop", d.stopTargets},
		{"park", d.park},
		{"trace", d.trace},
		{"checkpoint", d.checkpoint},
		{"release", d.release},
	} {
		if err := d.session.step(step.name, func() error { return step.do(ctx) }); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	if f := fateOf(d.members, Member.alive); len(f.ended) > 0 {
		return nil, errors.New(namedMembers(f.ended) + " ended while it was suspended: suspend what is left again")
	}
	return d.session, d.session.noteSuspended()
}

// journal begins the session of processes that this program works on, at the
// step that they have come to.
func (h *Hook) journal(members []Member, step string) (*Session, error) {
	self, err := proc.Open(os.Getpid())
	if err != nil {
		return nil, err
	}
	defer self.Close()
	return h.newSession(&Session{Kind: KindSuspend, Criu: self.Ident, Members: members, Ancestors: ancestorsOf(members), Step: step})
}

// noteSuspended notes that the session waits for its resume.
func (s *Session) noteSuspended() error {
	if err := s.step(stepSuspended, func() error { return nil }); err != nil {
		return err
	}
	return s.endWatcher()
}

// Resume brings processes back from whatever state they are in: running,
// locked or checkpointed; stopped or not; suspended, or left so by a command that
// was killed. Processes that were suspended together are resumed together, on
// the GPUs to which the configuration maps them. It returns the sessions that it
// has closed. After an error they are as they were, and it can be tried again.
//
// Of a process that something else has checkpointed it is not known how much
// GPU memory its restore takes, and one that runs out of memory is lost. Force
// says to try.
func (h *Hook) Resume(ctx context.Context, pids []int, force bool) (resumed []*Session, err error) {
	defer func() {
		if len(resumed) > 0 {
			err = preflight.AsFailure(err)
		}
	}()
	resumed = []*Session{}
	var unknown []int
	done := make(map[int]bool)
	for _, pid := range pids {
		if done[pid] {
			continue
		}
		done[pid] = true
		s, err := h.suspendedSession(ctx, pid)
		if err != nil {
			return resumed, preflight.AsRefusal(err)
		}
		if s == nil {
			unknown = append(unknown, pid)
			continue
		}
		for _, member := range s.Members {
			done[member.PID] = true
		}
		if err := h.resumeSession(ctx, s); err != nil {
			return resumed, err
		}
		resumed = append(resumed, s)
	}
	if len(unknown) == 0 {
		return resumed, nil
	}
	s, err := h.adopt(ctx, unknown, force)
	if err != nil || s == nil {
		return resumed, preflight.AsRefusal(err)
	}
	if err := h.resumeSession(ctx, s); err != nil {
		return resumed, err
	}
	return append(resumed, s), nil
}

// suspendedSession finds and locks the session in which a process was
// suspended, nil if it was not.
func (h *Hook) suspendedSession(ctx context.Context, pid int) (*Session, error) {
	s, err := sessionOfProcess(h.Config.RunDir, pid)
	if err != nil || s == nil {
		return nil, err
	}
	if s.Kind != KindSuspend {
		return nil, s.conflict()
	}
	// A watcher may be at work on it, after the command was killed.
	wait, cancel := context.WithTimeout(ctx, h.Config.Lock.Timeout)
	defer cancel()
	s.lock = flock.New(filepath.Join(s.dir, "lock"))
	if locked, err := s.lock.TryLockContext(wait, 20*time.Millisecond); !locked {
		return nil, errors.Join(s.conflict(), err)
	}
	if err := s.read(); err != nil {
		s.unlock()
		return nil, err
	}
	if s.Outcome != "" {
		s.unlock()
		return nil, nil // it has been brought back meanwhile
	}
	return s, nil
}

// adopt begins the session of processes of which none is known, nil if they
// all run. They are let run in the end, even if they are stopped: that is what
// they look like whose journal was lost.
func (h *Hook) adopt(ctx context.Context, pids []int, force bool) (*Session, error) {
	d := &dump{Hook: h}
	defer d.letGo()
	if err := d.take(ctx, pids); err != nil {
		return nil, err
	}
	if err := preflight.DifferentGPUs(inspectedOf(d.members)).Err(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, h.Config.Lock.Timeout)
	defer cancel()
	var needed atomic.Bool
	err := statesOf(ctx, d.targets, func(t *target, state cudackpt.State) error {
		if state == cudackpt.StateCheckpointed && !force {
			return fmt.Errorf("process %d (%s) was checkpointed by something else than cucriu suspend, and how much GPU memory its restore takes is not known; "+
				"if it ran out of it, the process would be lost: free its GPUs and use --force", t.PID, t.member.Name)
		}
		if state != cudackpt.StateRunning || t.member.Stopped {
			needed.Store(true)
		}
		return nil
	})
	if err != nil || !needed.Load() {
		return nil, err
	}
	for i := range d.members {
		d.members[i].Stopped = false
	}
	return h.journal(d.members, stepSuspended)
}

// resumeSession brings the processes of a locked session back, and closes it.
func (h *Hook) resumeSession(ctx context.Context, s *Session) (err error) {
	defer s.unlock()
	driver, err := h.OpenDriver()
	if err != nil {
		return preflight.AsRefusal(err)
	}
	if err := s.endWatcher(); err != nil {
		return err
	}
	before := fateOf(s.Members, Member.alive)
	s.Members = before.alive
	targets, err := openMembers(driver, s.Members)
	if err != nil {
		return err
	}
	defer closeTargets(targets)
	if err := h.mapGPUs(driver, s); err != nil {
		return preflight.AsRefusal(err)
	}
	if err := s.requireRoom(ctx, driver); err != nil {
		return preflight.AsRefusal(err)
	}
	self, err := proc.Open(os.Getpid())
	if err != nil {
		return err
	}
	defer self.Close()
	s.Criu, s.Watcher = self.Ident, nil
	err = s.step("resume", func() error {
		if err := h.startWatcher(s); err != nil {
			return err
		}
		return h.bringUp(ctx, driver, s, targets)
	})
	if err != nil {
		if f := fateOf(s.Members, Member.alive); len(f.alive) > 0 {
			return errors.Join(err, f.err("is not resumed"), s.noteSuspended())
		}
		f, closeErr := s.closeAlive(OutcomeRunning, "the resume failed; ", "", before.ended...)
		return errors.Join(err, f.err(""), closeErr)
	}
	f, err := s.closeAlive(OutcomeRunning, "resumed: ", "runs", before.ended...)
	return errors.Join(err, f.err("runs"))
}

// requireRoom refuses to resume what was suspended where the GPUs lack the memory for
// it, before anything of it is touched. It is looked at again just before the restore.
func (s *Session) requireRoom(ctx context.Context, driver *cudackpt.Driver) error {
	if !s.suspended() {
		return nil // how far it came is found out on the way back
	}
	need := make(preflight.MemoryNeed)
	for i := range s.Members {
		need.Add(s.Members[i].MemoryBytes, s.Members[i].Pairs)
	}
	return need.Require(ctx, driver)
}

// finishSuspend brings back what a command that was killed left behind.
func (h *Hook) finishSuspend(ctx context.Context, s *Session) error {
	if !slices.ContainsFunc(s.Members, Member.alive) {
		return s.close(OutcomeGone, "the processes ended")
	}
	if s.suspended() {
		return nil // as they were asked to be
	}
	driver, targets, err := h.open(s)
	if err != nil {
		return err
	}
	defer closeTargets(targets)
	if err := h.bringUp(ctx, driver, s, targets); err != nil {
		return err
	}
	_, err = s.closeAlive(OutcomeRunning, "the command was cut off at step "+s.Step+"; ", "runs")
	return err
}

func (m Member) ended() bool {
	process, err := proc.Reopen(m.Ident)
	if err == nil {
		defer process.Close()
		return process.Exiting()
	}
	return errors.Is(err, proc.ErrGone)
}

func (m Member) alive() bool { return !m.ended() }

func pidsOfMembers(members []Member) []int {
	pids := make([]int, len(members))
	for i, member := range members {
		pids[i] = member.PID
	}
	return pids
}
