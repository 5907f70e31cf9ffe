package hooks

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
	"cucriu/internal/image"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
)

// Hook is what a program works with that serves criu's stages, or does an operator's command. Its
// zero value has the defaults.
type Hook struct {
	// Config stands for [config.Default] if it has no run directory.
	Config config.Config
	// Log is nil if nothing is to be logged.
	Log *slog.Logger
	// Watcher is the command that watches over a session, whose directory is appended to it. If it
	// is empty, cucriu-hook is run: see [FindWatcher].
	Watcher []string
	// Progress, if set, is told of every step of a session as it begins. It must not
	// change the record.
	Progress func(r *journal.Record, step string)
	// Force names the findings that are errors and are to be overridden, in addition to
	// those of the configuration: see [preflight.Forceable]. The environment cannot set it.
	Force []string
}

// Filled returns a copy with its defaults, except for the watcher, which not everything needs.
func (h *Hook) Filled() *Hook {
	filled := *h
	if filled.Config.RunDir == "" {
		filled.Config = config.Default()
	}
	if filled.Log == nil {
		filled.Log = slog.New(slog.DiscardHandler)
	}
	return &filled
}

// OpenDriver opens the driver that the configuration names.
func (h *Hook) OpenDriver() (*cudackpt.Driver, error) {
	h = h.Filled()
	return cudackpt.Open(cudackpt.WithLibrary(h.Config.Driver.Library), cudackpt.WithRoot(h.Config.Driver.Root))
}

// Host returns the machine as the checks see it.
func (h *Hook) Host() preflight.Host {
	h = h.Filled()
	return preflight.Host{Driver: h.OpenDriver, Map: h.Config.GPUs.Map, Unmapped: h.Config.GPUs.Unmapped, RunDir: h.Config.RunDir, Timeout: h.Config.Lock.Timeout}
}

// Judge returns the findings as the user wants them judged: what the configuration refuses is
// an error, and what it and Force override a warning.
func (h *Hook) Judge(findings preflight.Findings) preflight.Findings {
	if h.Config.ForkedChildren == config.RefuseChildren {
		findings = findings.Harden(preflight.FindingForkedChild, "the configuration says forked_children: refuse; set it to release, or end these processes before the dump")
	}
	return findings.Force(slices.Concat(h.Force, h.Config.Force))
}

// Refuse fails if there are errors among the findings that are not overridden. It logs what
// is overridden, and warnings.
func (h *Hook) Refuse(findings preflight.Findings) error {
	h = h.Filled()
	if err := preflight.CheckForce(slices.Concat(h.Force, h.Config.Force)); err != nil {
		return err
	}
	findings = h.Judge(findings)
	for _, f := range findings.Of(preflight.SeverityWarning) {
		h.Log.Warn(f.String(), "finding", f.Name, "forced", f.Forced)
	}
	return findings.Err()
}

// SessionFindings says which open session of the journal is in the way of a dump of the tree
// below root. Only a suspend refuses the dump. It waits for any other session, for a while.
func (h *Hook) SessionFindings(root int) (preflight.Findings, error) {
	runDir := h.Filled().Config.RunDir
	if journal.IsForeign(runDir) {
		return nil, nil
	}
	members, err := membersOfTree(root)
	if err != nil {
		return nil, err
	}
	other, err := journal.FindOpen(runDir, proc.Ident{}, members)
	if err != nil || other == nil {
		return nil, err
	}
	severity := preflight.SeverityWarning
	if other.Suspended() {
		severity = preflight.SeverityError
	}
	return preflight.Findings{preflight.SessionFinding(severity, other.Conflict())}, nil
}

// membersOfTree returns the processes of a tree as the members of a journal.
func membersOfTree(root int) ([]journal.Member, error) {
	pids, err := proc.Tree(root)
	if err != nil {
		return nil, err
	}
	var members []journal.Member
	for _, pid := range pids {
		if id, err := proc.IdentOf(pid); err == nil {
			members = append(members, journal.Member{Process: preflight.Process{Ident: id}})
		}
	}
	return members, nil
}

// NewPartial makes the folder that criu writes into. It leaves alone what a killed dump has
// left there, if that dump's job must yet be brought back from it.
func (h *Hook) NewPartial(dir string) (string, error) {
	h = h.Filled()
	return image.NewPartial(dir, func(partial string) bool {
		session, err := neededBy(h.Config.RunDir, partial)
		if err == nil && session == "" {
			return false
		}
		h.Log.Info("what a killed dump has left stays for now: its job is not back yet", "directory", partial, "session", session, "error", err)
		return true
	})
}

// Held returns the session of a hold, as it stands. The error is [os.ErrNotExist] if there is none.
func (h *Hook) Held(id string) (*journal.Session, error) {
	return journal.FindHold(h.Filled().Config.RunDir, id)
}

// patience is how long to wait for processes that run until they answer through the driver, or come
// to their stop. It is lock.timeout, and longer if many of their threads run and keep each other from
// the CPUs: a thousand threads that compute on two CPUs make a turn last seconds.
func (h *Hook) patience(pids ...int) time.Duration {
	const turn = 4 * time.Millisecond // how long the kernel lets a thread run while others wait
	const turns = 20
	running := 0
	for _, pid := range pids {
		if states, err := proc.ThreadStates(pid); err == nil {
			running += strings.Count(states, "R")
		}
	}
	return h.Config.Lock.Timeout + time.Duration(running/runtime.NumCPU())*turns*turn
}

// KeepRefusal keeps the reason for which a dump or a restore was refused, for the status
// command. root is 0 if it is not known, and criu is 0 if none was started.
func (h *Hook) KeepRefusal(kind journal.Kind, criu, root int, imageDir string, err error) {
	r := journal.Refusal{Kind: kind, CriuPID: criu, RootPID: root, ImageDir: imageDir}
	if refused := new(preflight.RefusedError); errors.As(err, &refused) {
		r.Findings = refused.Findings
	} else {
		r.Message = err.Error()
	}
	h.Filled().keep(r)
}

func (h *Hook) keep(r journal.Refusal) {
	root := r.RootPID
	if status, err := proc.ReadStatus(root); err == nil && root > 0 {
		r.Process = status.Name
	}
	if id, err := proc.IdentOf(root); err == nil && root > 0 {
		r.Root = &id
	}
	if err := journal.KeepRefusal(h.Config.RunDir, r); err != nil {
		h.Log.Debug("the reason is not kept", "error", err)
	}
}
