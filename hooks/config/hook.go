package config

import (
	"errors"
	"log/slog"
	"slices"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
	"cucriu/internal/kit/fault"
)

// Hook is how a program works with criu's stages and with jobs. Its zero value has the defaults.
type Hook struct {
	// Config stands for [Default] if it has no run directory.
	Config Config
	// Log is nil if nothing is to be logged.
	Log *slog.Logger
	// Watcher is the command that watches over a session, whose directory is appended to it. If it is
	// empty, cucriu-hook is run, from beside this program or from where its package puts it.
	Watcher []string
	// Progress, if set, is told of every step of a session as it begins.
	Progress func(Step)
	// Force names the findings that are errors and are to be overridden, in addition to those of the
	// configuration: see [preflight.Forceable]. The environment cannot set it, except for cuda-checkpoint.
	Force []string
}

// Step is a step of a dump, a restore, a suspend or a resume.
type Step struct {
	Name string
	// Measure begins to measure the step, and returns what says how far it has come, in bytes. Measure, or what it
	// returns, is nil if that cannot be measured. It may be called until Progress returns.
	Measure func() func() (done, total int64)
}

// Filled returns a copy with its defaults, except for the watcher, which not everything needs.
func (h *Hook) Filled() *Hook {
	filled := *h
	if filled.Config.RunDir == "" {
		filled.Config = Default()
	}
	if filled.Log == nil {
		filled.Log = slog.New(slog.DiscardHandler)
	}
	return &filled
}

// OpenDriver opens the driver that the configuration names.
func (h *Hook) OpenDriver() (*cudackpt.Driver, error) {
	h = h.Filled()
	driver, err := cudackpt.Open(cudackpt.WithLibrary(h.Config.Driver.Library), cudackpt.WithRoot(h.Config.Driver.Root))
	if missing, is := errors.AsType[*cudackpt.LibraryError](err); is {
		err = fault.Because(err, missing.Meaning(), "install the NVIDIA driver on this host, or specify its library by path: driver.library in the configuration, or "+EnvLibrary)
	}
	return driver, err
}

// Judge returns the findings as the user wants them judged: what the configuration refuses is an error,
// and what it and Force override a warning.
func (h *Hook) Judge(findings preflight.Findings) preflight.Findings {
	if h.Config.ForkedChildren == RefuseChildren {
		findings = findings.Harden(preflight.FindingForkedChild, "the configuration says forked_children: refuse; set it to release, or end these processes before the dump")
	}
	return findings.Force(slices.Concat(h.Force, h.Config.Force))
}

// Refuse fails if there are errors among the findings that are not overridden. It logs what is
// overridden, and warnings.
func (h *Hook) Refuse(findings preflight.Findings) error {
	h = h.Filled()
	if err := preflight.CheckForce(slices.Concat(h.Force, h.Config.Force)); err != nil {
		return err
	}
	findings = h.Judge(findings)
	h.Warn("", findings)
	return findings.Err()
}

// Warn logs the warnings among findings that are judged, of another host if one is named.
func (h *Hook) Warn(host string, findings preflight.Findings) {
	for _, f := range findings.Of(preflight.SeverityWarning) {
		text := f.String()
		if host != "" {
			text = "at " + host + ": " + text
		}
		if f.Forced {
			text += " (overridden)"
		}
		h.Filled().Log.Warn(text, "finding", f.Name)
	}
}
