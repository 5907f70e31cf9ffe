package session

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"time"

	"cucriu/hooks/config"
	"cucriu/hooks/preflight"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/rundir"
)

// Env is what a program works with, with its defaults: see [config.Hook].
type Env struct{ config.Hook }

// Of returns what sessions need of a hook.
func Of(hook *config.Hook) *Env { return &Env{*hook.Filled()} }

// Host returns the machine as the checks see it.
func (env *Env) Host() inspect.Host {
	return inspect.Host{
		Driver: env.OpenDriver, Map: env.Config.GPUs.Map, Unmapped: env.Config.GPUs.Unmapped,
		Timeout:        env.Config.Lock.Timeout,
		Promised:       func() inspect.MemoryNeed { return env.Promised(nil, nil) },
		PromisedMemory: func() []inspect.HostNeed { return env.PromisedMemory(nil, nil) },
	}
}

// Promised is [journal.Promised] for the run directory.
func (env *Env) Promised(of *journal.Session, hold *journal.Hold) inspect.MemoryNeed {
	return journal.Promised(env.Config.RunDir, of, hold)
}

// PromisedMemory is [journal.PromisedMemory] for the run directory.
func (env *Env) PromisedMemory(of *journal.Session, hold *journal.Hold) []inspect.HostNeed {
	return journal.PromisedMemory(env.Config.RunDir, of, hold)
}

// AwaitRoom tries something again while there may soon be the memory for it: see [inspect.Patience].
func (env *Env) AwaitRoom(ctx context.Context, try func() error) error {
	begun := time.Now()
	for said := false; ; said = true {
		err := try()
		if time.Since(begun) >= inspect.Patience(err) {
			return err
		}
		if !said {
			env.Log.Warn("waiting: " + err.Error())
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond): // there is no event to wait for
		}
	}
}

// ExplainTaken has the findings about pids in use say so if it is the job itself that has them: one that was
// restored from the image, or that its dump left running.
func (env *Env) ExplainTaken(imageDir string, taken preflight.Findings) preflight.Findings {
	if len(taken) == 0 {
		return nil
	}
	all, _ := journal.List(env.Config.RunDir) // without them they are still in use
	for i, f := range taken {
		for _, s := range all {
			if imageDir != s.ImageDir && imageDir != s.PublishedDir || s.Outcome != journal.OutcomeRunning || s.Root == nil || s.Root.PID != f.PID {
				continue
			}
			if gone, err := Gone(*s.Root); err != nil || gone {
				continue
			}
			at := s.Created.Local().Format(time.TimeOnly)
			switch s.Kind {
			case journal.KindRestore:
				taken[i].Message, taken[i].Remedy = "is the job itself, which was restored from this image at "+at+" and runs", "nothing is left to do; to restore the image once more, end the job first"
			case journal.KindDump:
				taken[i].Message, taken[i].Remedy = "is the job itself, which the dump at "+at+" left running", "end the job before you restore it"
			}
		}
	}
	return taken
}

// SessionFindings says which open session of the journal is in the way of a dump of the tree below
// root. A suspend refuses the dump, and so does a dump that will end the job. It waits for any other
// session, for a while.
func (env *Env) SessionFindings(root int) (preflight.Findings, error) {
	runDir := env.Config.RunDir
	if rundir.IsForeign(runDir) {
		return nil, nil
	}
	members, err := MembersOfTree(root)
	if err != nil {
		return nil, err
	}
	other, err := journal.FindOpen(runDir, proc.Ident{}, members)
	if err != nil {
		return nil, err
	}
	if other == nil {
		for _, m := range members {
			if err := Unhooked(runDir, m.PID); err != nil {
				return preflight.Findings{preflight.Found(preflight.FindingSession, err)}, nil
			}
		}
		return nil, nil
	}
	f := preflight.Found(preflight.FindingSession, other.Conflict())
	if !other.Suspended() && !other.EndsJob() {
		f.Severity = preflight.SeverityWarning
	}
	return preflight.Findings{f}, nil
}

// MembersOfTree returns the processes of a tree as the members of a journal.
func MembersOfTree(root int) ([]journal.Member, error) {
	pids, err := proc.Tree(root)
	if err != nil {
		return nil, err
	}
	var members []journal.Member
	for _, pid := range pids {
		if id, err := proc.IdentOf(pid); err == nil {
			members = append(members, journal.Member{Process: inspect.Process{Ident: id}})
		}
	}
	return members, nil
}

// NewPartial makes the folder that criu writes into. It leaves alone what a killed dump has left there,
// if that dump's job has yet to be restored from it. See [imagedir.NewPartial].
func (env *Env) NewPartial(dir string) (*imagedir.Partial, error) {
	return imagedir.NewPartial(dir, func(partial string) bool {
		session, err := neededBy(env.Config.RunDir, partial)
		if err == nil && session == "" {
			return false
		}
		env.Log.Info("leftovers of a killed dump are kept for now: its job is not recovered yet", "directory", partial, "session", session, "error", err)
		return true
	})
}

// Held returns the session of a hold, as it stands. The error is [os.ErrNotExist] if there is none.
func (env *Env) Held(id string) (*journal.Session, error) {
	return journal.FindHold(env.Config.RunDir, id)
}

// Patience is how long to wait for processes that run until they answer through the driver, or come to
// their stop: lock.timeout, and longer if many of their threads run and keep each other from the CPUs.
// A thousand threads that compute on two CPUs make a turn last seconds.
func (env *Env) Patience(pids ...int) time.Duration {
	const turn = 4 * time.Millisecond // how long the kernel lets a thread run while others wait
	const turns = 20
	running := 0
	for _, pid := range pids {
		if states, err := proc.ThreadStates(pid); err == nil {
			running += strings.Count(states, "R")
		}
	}
	return env.Config.Lock.Timeout + time.Duration(running/runtime.NumCPU())*turns*turn
}

// KeepRefusal keeps why a dump or a restore was refused, for the status command. rename are names in the
// error's text and what they are kept as, by turns.
func (env *Env) KeepRefusal(r journal.Refusal, err error, rename ...string) {
	named := strings.NewReplacer(rename...).Replace
	if refused := new(preflight.RefusedError); errors.As(err, &refused) {
		for _, f := range refused.Findings {
			f.Message, f.Remedy = named(f.Message), named(f.Remedy)
			r.Findings = append(r.Findings, f)
		}
	} else {
		r.Message = named(err.Error())
	}
	if id, err := proc.IdentOf(r.RootPID); err == nil && r.RootPID > 0 {
		r.Root = &id
		status, _ := proc.ReadStatus(r.RootPID) // it may have ended
		r.Process = status.Name
	}
	if err := journal.KeepRefusal(env.Config.RunDir, r); err != nil {
		env.Log.Debug("the reason could not be recorded", "error", err)
	}
}
