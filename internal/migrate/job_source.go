package migrate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs"
	"cucriu/internal/migrate/commit"
	"cucriu/internal/migrate/prepare"
)

// A long job moves as checkpoints: no process of it is on two hosts, and none is held.
//
//	source (cucriu migrate --job)              destination (cucriu receive)
//	job        describe it                     may it come: nothing is touched yet
//	round 1    its checkpoints go ahead, while the job keeps running; verified there
//	stop       a last checkpoint ends the job; its supervisor waits
//	round 2    the last checkpoint, as far as
//	           it is new, and the job's other
//	           files                           the newest is whole: ready
//	commit     "left" in its directory         "arrived"; a supervisor resumes it: running
//	                                           or it cannot, and never will: returned
//
// The records of both sides are in the job's directory: see [jobs.Move]. A destination that cannot
// resume the job gives it back. That is a move in the other direction, whose commit point is the
// record "left" there, and for which the source has everything already.

// jobSource is the source's side of the move of a long job.
type jobSource struct {
	sourceSession
	of    *jobs.Leaving
	lock  *jobs.MoveLock
	there map[string]uint32 // the checkpoints that the destination has
	// warned has what was said of the destination's warnings.
	warned map[string]bool
	round  int
}

func newJobSource(hook *hooks.Hook, job *jobs.Leaving, o Options) *jobSource {
	s := &jobSource{of: job, there: make(map[string]uint32), warned: make(map[string]bool)}
	s.sourceSession = sourceSession{job: s, dir: job.Dir, hook: hook.Filled(), options: o, begun: time.Now()}
	return s
}

// MigrateJob moves a long job with its checkpoints to another host, where a supervisor continues with
// it. After an error the job stays here, unless the error wraps [hooks.ErrNotBack]. If ctx ends
// before the destination is ready, the move is given up.
func MigrateJob(ctx context.Context, hook *hooks.Hook, job *jobs.Leaving, o Options) (Result, error) {
	s := newJobSource(hook, job, o)
	defer s.close()
	err := s.run(ctx)
	return s.result, err
}

func (s *jobSource) close() {
	s.sourceSession.close()
	if s.lock != nil {
		_ = s.lock.Free()
	}
}

// prepare finds the destination, and whether the job can move there.
func (s *jobSource) prepare(ctx context.Context) (err error) {
	of, err := s.of.Announce(ctx, s.options.Start)
	if err != nil {
		return err
	}
	if s.lock, err = jobs.TryLockMove(s.dir); err != nil {
		return err
	}
	if m, err := jobs.ReadMove(s.dir); err != nil {
		return err
	} else if m.State == jobs.MoveLeaving || m.State == jobs.MoveStays {
		return fmt.Errorf("an earlier move of %s, to %s, was interrupted, and that host has yet to be notified: run cucriu recover; or, if that host is gone permanently, cucriu recover --drop %s", s.of.Name, m.Peer, m.ID)
	}
	if err := s.phase("connect", func() error { return s.connect(ctx) }); err != nil {
		return err
	}
	return s.phase("prepare", func() error {
		if err := s.remote.Send(sayJob, jobMessage{of, s.options.Start}); err != nil {
			return err
		}
		var has jobWelcome
		if err := s.remote.expect(ctx, sayWelcome, &has); err != nil {
			return err
		}
		for _, l := range has.Have {
			s.there[l.Name] = l.CRC32C
		}
		return nil
	})
}

func (s *jobSource) begin() error {
	if before, err := jobs.ReadMove(s.dir); err != nil {
		return err
	} else if before.State == jobs.MoveArrived {
		if err := jobs.NoteArrival(s.dir, before.ID); err != nil {
			return err
		}
	}
	m := jobs.Move{ID: s.result.ID, State: jobs.MoveLeaving, Peer: s.options.Host, RSH: s.options.RSH, Remote: s.options.Remote}
	return m.Write(s.dir)
}

// move brings the job to the destination, which has promised it when move returns.
func (s *jobSource) move(ctx context.Context) error {
	if err := reach(ctx, "job.leaving"); err != nil {
		return err
	}
	needed := s.options.Precopy == PrecopyAlways
	if !needed {
		var err error
		if needed, err = s.of.NeedsCheckpoint(ctx); err != nil {
			return err
		}
	}
	if needed {
		if err := s.phase("first checkpoint", func() error { return s.of.Checkpoint(ctx) }); err != nil {
			return err
		}
	}
	if err := s.phase("ahead", func() error { return s.send(ctx, "ahead") }); err != nil {
		return err
	}
	s.result.Ahead, s.result.Bytes = s.result.Bytes, 0
	if err := reach(ctx, "job.ahead"); err != nil {
		return err
	}
	s.halted = time.Now()
	if err := s.phase("last checkpoint", func() error { return s.of.End(ctx) }); err != nil {
		return err
	}
	if err := reach(ctx, "job.stopped"); err != nil {
		return err
	}
	if err := s.phase("send", func() error { return s.send(ctx, "send") }); err != nil {
		return err
	}
	return reach(ctx, "job.ready")
}

// send sends the checkpoints that the destination has not: all of them while the job keeps running, and
// once it has ended the newest one, and the job's other files.
func (s *jobSource) send(ctx context.Context, phase string) error {
	last := !s.halted.IsZero()
	manifest, _, err := s.collect(last)
	if err != nil || !last && len(manifest.Checkpoints) == 0 {
		return err
	}
	s.round++
	data, err := s.open(ctx, round{Number: s.round})
	if err != nil {
		return err
	}
	defer data.close()
	manifest, paths, err := s.collect(last) // again: the supervisor may have pruned one meanwhile
	if err != nil {
		return err
	}
	content, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	total := int64(len(content))
	data.sender.Add(jobManifestName, bytes.NewReader(content)).Complete(total)
	for i, path := range paths {
		size, err := data.send(roundName(i), path)
		if err != nil {
			return err
		}
		total += size
	}
	err = data.finish(ctx, phase, total)
	s.result.Bytes += data.totals.Bytes
	if err != nil {
		return err
	}
	if err := s.remote.Send(sayTake, nil); err != nil {
		return err
	}
	if last {
		err = s.remote.expect(ctx, sayReady, nil)
	} else {
		err = s.awaitTaken(ctx)
	}
	if err != nil {
		return err
	}
	for _, c := range manifest.Checkpoints {
		s.there[c.Name] = c.CRC32C
	}
	return nil
}

// awaitTaken waits until the destination has what was sent, and passes on what it warns of: once,
// however many rounds there are.
func (s *jobSource) awaitTaken(ctx context.Context) error {
	there := new(prepare.Judgement)
	if err := s.remote.expect(ctx, sayTaken, there); err != nil {
		return err
	}
	if err := there.Validate(new(prepare.Job)); err != nil {
		return err
	}
	there.Findings = slices.DeleteFunc(there.Findings, func(f preflight.Finding) bool { return s.warned[f.String()] })
	s.hook.Warn(s.options.Host, there.Findings)
	for _, f := range there.Findings {
		s.warned[f.String()] = true
	}
	return nil
}

// roundName is the name in a round of the nth file.
func roundName(n int) string { return fmt.Sprintf("f%d", n) }

// collect lists what a round has, and the paths of its files here.
func (s *jobSource) collect(last bool) (m jobManifest, paths []string, err error) {
	add := func(path string) (name string) {
		paths = append(paths, path)
		return roundName(len(paths) - 1)
	}
	carries, err := s.of.Luggage(s.there, last)
	if err != nil {
		return m, nil, err
	}
	m.Newest = carries.Newest
	for _, l := range carries.Checkpoints {
		c := jobCheckpoint{Listed: l}
		for _, f := range l.Files {
			name := ""
			if f.SameAs == "" {
				name = add(filepath.Join(s.dir, "checkpoints", l.Name, f.Name))
			}
			c.Sent = append(c.Sent, name)
		}
		m.Checkpoints = append(m.Checkpoints, c)
	}
	for _, name := range carries.Files {
		m.Others = append(m.Others, jobFile{Name: name, Sent: add(filepath.Join(s.dir, name))})
	}
	return m, paths, nil
}

// read reads the record of this move.
func (s *jobSource) read() (jobs.Move, error) {
	m, err := jobs.ReadMove(s.dir)
	if err == nil && m.ID != s.result.ID {
		err = errors.New("the record of the move was replaced")
	}
	return m, err
}

// state returns where the source stands. Its program has the lock of the record.
func (s *jobSource) state() (commit.SourceState, error) {
	m, err := s.read()
	switch {
	case err != nil:
		return "", err
	case m.State == jobs.MoveLeaving:
		return commit.Undecided, nil
	case m.State == jobs.MoveLeft:
		return commit.End, nil
	}
	return commit.Back, nil
}

// decide writes a decision down. The job's supervisor does what it says: it has ended the job before
// the move could be promised, and resumes a job that stays.
func (s *jobSource) decide(ctx context.Context, state commit.SourceState) error {
	m, err := s.read()
	if err != nil {
		return fmt.Errorf("%w: %w", hooks.ErrNotBack, err)
	}
	if decided := map[commit.SourceState]jobs.MoveState{commit.Back: jobs.MoveStays, commit.End: jobs.MoveLeft}[state]; m.State != decided {
		if decided == jobs.MoveLeft {
			if err := s.of.Leave(); err != nil {
				return fmt.Errorf("%w: %w", hooks.ErrNotBack, err)
			}
		}
		m.State = decided
		if err := m.Write(s.dir); err != nil {
			return fmt.Errorf("%w: %w", hooks.ErrNotBack, err)
		}
	}
	if state == commit.Back {
		if err := reach(ctx, "job.back"); err != nil {
			return err
		}
		return s.bringBack(ctx)
	}
	if err := reach(ctx, "job.left"); err != nil {
		return err
	}
	return s.of.RequireGone()
}

// bringBack waits until the job runs here. If it does not, the destination is told all the same
// that it stays, and the error is kept for later.
func (s *jobSource) bringBack(ctx context.Context) error {
	if s.recovering || s.notBack != nil {
		return nil // whoever has started the supervisor starts it again
	}
	err := s.phase("bring back", s.of.AwaitBack)
	if errors.Is(err, hooks.ErrNotBack) {
		s.notBack, err = err, nil
	}
	return err
}

// returnedError says that the destination could not resume a job, which stays here.
type returnedError struct{ host, name, why string }

func (e *returnedError) Error() string {
	return fmt.Sprintf("%s could not resume %s: %s; it stays here", e.host, e.name, e.why)
}

// Refused returns false: the job was stopped.
func (e *returnedError) Refused() bool { return false }

// returned lets a job run here that the destination has given back.
func (s *jobSource) returned(ctx context.Context, why string) error {
	if err := reach(ctx, "job.takeback"); err != nil {
		return err
	}
	if err := errors.Join(s.of.Stays(), jobs.RemoveMove(s.dir)); err != nil {
		return fmt.Errorf("%w: %w", hooks.ErrNotBack, err)
	}
	err := s.bringBack(ctx)
	return errors.Join(s.notBack, err, &returnedError{s.options.Host, s.of.Name, cmp.Or(why, "it gave no reason")})
}

func (s *jobSource) told(_ context.Context, state commit.SourceState) error {
	if state == commit.Back {
		return errors.Join(s.notBack, s.of.Stays(), jobs.RemoveMove(s.dir))
	}
	m, err := s.read()
	if err == nil {
		err = s.of.Gone()
	}
	if err == nil {
		m.PeerKnows = true
		err = m.Write(s.dir)
	}
	return err
}

func (s *jobSource) forgotten() error {
	return fmt.Errorf("%w: %s has moved to %s, which no longer knows it: look on every host to which it may have moved on; if none has it, cucriu recover --take %s lets it run here", hooks.ErrNotBack, s.of.Name, s.options.Host, s.result.ID)
}

func (s *jobSource) undelivered(state commit.SourceState, cause error) string {
	if state == commit.End {
		return fmt.Sprintf("%s has left this host, but %s, which has it complete, has not confirmed that it runs there: %v; run cucriu recover here when it can be reached; or there: cucriu recover --take %s",
			s.of.Name, s.options.Host, cause, s.result.ID)
	}
	return fmt.Sprintf("%s stays here, but %s could not be notified: %v; if it has the job's checkpoints, they do no harm; run cucriu recover here when it can be reached; or, if it never can, cucriu recover --drop %s",
		s.of.Name, s.options.Host, cause, s.result.ID)
}
