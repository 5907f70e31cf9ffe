package session

import (
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"time"

	"cucriu/cudackpt"
	"cucriu/hooks/config"
	"cucriu/hooks/preflight"
	"cucriu/internal/fault"
	"cucriu/internal/image"
	"cucriu/internal/inspect"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
)

// Env is what a program works with that serves criu's stages, or does an operator's command. Its zero
// value has the defaults.
type Env struct {
	// Config stands for [config.Default] if it has no run directory.
	Config config.Config
	// Log is nil if nothing is to be logged.
	Log *slog.Logger
	// Watcher is the command that watches over a session, whose directory is appended to it. If it is
	// empty, cucriu-hook is run: see [FindWatcher].
	Watcher []string
	// Progress, if set, is told of every step of a session as it begins. It must not change the record.
	Progress func(r *journal.Record, step string)
	// Force names the findings that are errors and are to be overridden, in addition to those of the
	// configuration: see [preflight.Forceable]. The environment cannot set it, except for cuda-checkpoint.
	Force []string
}

// Filled returns a copy with its defaults, except for the watcher, which not everything needs.
func (env *Env) Filled() *Env {
	filled := *env
	if filled.Config.RunDir == "" {
		filled.Config = config.Default()
	}
	if filled.Log == nil {
		filled.Log = slog.New(slog.DiscardHandler)
	}
	return &filled
}

// OpenDriver opens the driver that the configuration names.
func (env *Env) OpenDriver() (*cudackpt.Driver, error) {
	env = env.Filled()
	driver, err := cudackpt.Open(cudackpt.WithLibrary(env.Config.Driver.Library), cudackpt.WithRoot(env.Config.Driver.Root))
	if missing, is := errors.AsType[*cudackpt.LibraryError](err); is {
		err = fault.Because(err, missing.Meaning(), "install the NVIDIA driver on this host, or specify its library by path: driver.library in the configuration, or "+config.EnvLibrary)
	}
	return driver, err
}

// Host returns the machine as the checks see it.
func (env *Env) Host() inspect.Host {
	env = env.Filled()
	return inspect.Host{Driver: env.OpenDriver, Map: env.Config.GPUs.Map, Unmapped: env.Config.GPUs.Unmapped, Timeout: env.Config.Lock.Timeout}
}

// Judge returns the findings as the user wants them judged: what the configuration refuses is an error,
// and what it and Force override a warning.
func (env *Env) Judge(findings preflight.Findings) preflight.Findings {
	if env.Config.ForkedChildren == config.RefuseChildren {
		findings = findings.Harden(preflight.FindingForkedChild, "the configuration says forked_children: refuse; set it to release, or end these processes before the dump")
	}
	return findings.Force(slices.Concat(env.Force, env.Config.Force))
}

// Refuse fails if there are errors among the findings that are not overridden. It logs what is
// overridden, and warnings.
func (env *Env) Refuse(findings preflight.Findings) error {
	env = env.Filled()
	if err := preflight.CheckForce(slices.Concat(env.Force, env.Config.Force)); err != nil {
		return err
	}
	findings = env.Judge(findings)
	env.Warn("", findings)
	return findings.Err()
}

// Warn logs the warnings among findings that are judged, of another host if one is named.
func (env *Env) Warn(host string, findings preflight.Findings) {
	for _, f := range findings.Of(preflight.SeverityWarning) {
		text := f.String()
		if host != "" {
			text = "at " + host + ": " + text
		}
		if f.Forced {
			text += " (overridden)"
		}
		env.Filled().Log.Warn(text, "finding", f.Name)
	}
}

// ExplainTaken has the findings about pids in use say so if it is the job itself that has them: one that was
// restored from the image, or that its dump left running.
func (env *Env) ExplainTaken(imageDir string, taken preflight.Findings) preflight.Findings {
	if len(taken) == 0 {
		return nil
	}
	all, _ := journal.List(env.Filled().Config.RunDir) // without them they are still in use
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
	runDir := env.Filled().Config.RunDir
	if journal.IsForeign(runDir) {
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
// if that dump's job has yet to be restored from it. See [image.NewPartial].
func (env *Env) NewPartial(dir string) (*image.Partial, error) {
	env = env.Filled()
	return image.NewPartial(dir, func(partial string) bool {
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
	return journal.FindHold(env.Filled().Config.RunDir, id)
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
	env = env.Filled()
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
