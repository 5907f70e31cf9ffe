package hooks

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"cucriu/criuutil"
	"cucriu/cudackpt"
	"cucriu/hooks/config"
	"cucriu/hooks/preflight"
	"cucriu/internal/journal"
	"cucriu/internal/pages"
	"cucriu/internal/proc"
	"cucriu/internal/timeline"
)

// Hook does what criu's stages ask for, and what operators do without criu. Its zero
// value has the defaults.
type Hook struct {
	// Config stands for [config.Default] if it has no run directory.
	Config config.Config
	// Log is nil if nothing is to be logged.
	Log *slog.Logger
	// Watcher is the command that runs [Hook.Watch]; the session's directory is appended to
	// it. If it is empty, cucriu-hook is run: see [FindWatcher].
	Watcher []string
	// Progress, if set, is told of every step of a session as it begins. It must not
	// change the record.
	Progress func(r *journal.Record, step string)
	// Force names the findings that are errors and are to be overridden, in addition to
	// those of the configuration: see [preflight.Forceable]. The environment cannot set it.
	Force []string

	by    string        // who spends the time of the phases that it notes: see [timeline.Phase.By]
	begun time.Duration // when the stage began, since boot
}

// New makes a hook with a configuration, which [config.Load] reads as the commands do.
// watcher is the command that runs [Hook.Watch]; without one it is that of [FindWatcher].
func New(cfg config.Config, log *slog.Logger, watcher ...string) (*Hook, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if len(watcher) == 0 {
		var err error
		if watcher, err = FindWatcher(); err != nil {
			return nil, err
		}
	}
	return &Hook{Config: cfg, Log: log, Watcher: watcher}, nil
}

// FindWatcher finds cucriu-hook beside this program, in PATH, or in /usr/libexec/cucriu,
// and returns the command that runs the watcher.
func FindWatcher() ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	const name = "cucriu-hook"
	for _, path := range []string{filepath.Join(filepath.Dir(self), name), name, "/usr/libexec/cucriu/" + name} {
		if found, err := exec.LookPath(path); err == nil {
			return []string{found, "watch"}, nil
		}
	}
	return nil, fmt.Errorf("%s, which watches over a job that is dumped, is neither beside %s nor in PATH nor in /usr/libexec/cucriu", name, self)
}

// Filled returns the hook with its defaults, except for the watcher, which not everything
// needs.
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

// Stage is what criu tells an action script through its environment.
type Stage struct {
	Action   string // CRTOOLS_SCRIPT_ACTION
	ImageDir string // CRTOOLS_IMAGE_DIR: /proc/PID/fd/N of criu itself; with a Client, the directory's path
	InitPID  string // CRTOOLS_INIT_PID: the root task, a pid that criu's caller sees

	// Commit gives a complete image its final form at post-dump, before criu ends the
	// processes. It is nil if there is nothing to do. An error keeps the job alive.
	Commit func(context.Context) error `json:"-"`
	// CommittedDir is where the image is after Commit; empty if that is still ImageDir.
	CommittedDir string
	// Pages is where the GPU state of a dump goes; nil for files in ImageDir, from which a
	// restore reads it. It must have files open while it is written, which the watcher holds:
	// if the dump fails, the job is brought back from them.
	Pages pages.Store `json:"-"`
	// Written is told of the files of the GPU state as they grow, if Pages is nil: see
	// [pages.Files.Written].
	Written func(f *os.File, offset, size int64) `json:"-"`
	// Hold, if it is set, keeps the processes held after criu has done its part, until
	// [Hook.Decide].
	Hold *journal.Hold `json:"-"`
	// Client is the process that serves criu's notifications over RPC; nil for an action
	// script.
	Client *proc.Ident
}

// StageFrom reads the stage from an environment.
func StageFrom(getenv func(string) string) Stage {
	return Stage{
		Action:   getenv("CRTOOLS_SCRIPT_ACTION"),
		ImageDir: getenv("CRTOOLS_IMAGE_DIR"),
		InitPID:  getenv("CRTOOLS_INIT_PID"),
	}
}

// Run does what the stage asks for. Stages that need nothing of us succeed at once. criu
// aborts on an error at pre-dump and pre-restore. It ignores one at pre-resume and
// post-resume, so there Run ends the tree itself. If an engine drives criu, the error is a
// [LateError] then.
func (h *Hook) Run(ctx context.Context, stage Stage) error {
	h = h.Filled()
	if stage.Action == "" {
		return fmt.Errorf("CRTOOLS_SCRIPT_ACTION is not set: this program is an action script of criu (criu dump --action-script %s …), not a command", "cucriu-hook")
	}
	if h.handler(stage) == nil {
		return nil
	}
	inside, err := proc.IsInInnerPIDNamespace()
	if err != nil {
		return err
	}
	if inside && slices.Contains(insideStages, stage.Action) {
		return h.runInside(ctx, stage)
	}
	criu, err := criuutil.CriuOf(stage.ImageDir)
	if err != nil {
		return err
	}
	defer criu.Close()
	// criu's configuration files may name this hook although a client serves the dump or
	// restore over RPC. criu notifies its client first.
	if served, err := h.servedByClient(criu); err != nil || served {
		return err
	}
	return late(criu, stage, h.once(ctx, criu, stage, h.Serve))
}

// Serve does what a stage asks for, for a criu that is driven over RPC. [Hook.Run] is for
// criu's action script.
func (h *Hook) Serve(ctx context.Context, criu *criuutil.Criu, stage Stage) error {
	staged := h.Filled()
	staged.by, staged.begun = stage.Action, timeline.SinceBoot()
	do := staged.handler(stage)
	if do == nil {
		return nil
	}
	err := do(ctx, criu, stage)
	if beginsRequest(stage.Action) && preflight.Refused(err) && ctx.Err() == nil {
		staged.keepRefusalOf(criu, stage, err)
	}
	return err
}

// handler returns the function that does a stage, nil if the stage needs nothing of us.
func (h *Hook) handler(stage Stage) func(context.Context, *criuutil.Criu, Stage) error {
	switch stage.Action {
	case criuutil.StagePreDump:
		return h.onPreDump
	case criuutil.StagePostDump:
		return h.onPostDump
	case criuutil.StageNetworkUnlock:
		return h.onNetworkUnlock
	case criuutil.StagePreRestore:
		return h.onPreRestore
	case criuutil.StageSetupNamespaces, criuutil.StagePostSetupNamespaces, criuutil.StagePostRestore:
		return h.onRootNamed
	case criuutil.StagePreResume:
		return h.onPreResume
	case criuutil.StagePostResume:
		return h.onPostResume
	}
	return nil
}

// imagePath returns the path of the image directory, for messages and the journal.
func (s Stage) imagePath() (string, error) {
	if s.Client != nil {
		return s.ImageDir, nil
	}
	path, err := os.Readlink(s.ImageDir)
	if err != nil {
		return "", fmt.Errorf("image directory: %w", err)
	}
	return path, nil
}

// root parses CRTOOLS_INIT_PID.
func (s Stage) root() (int, error) {
	pid, err := strconv.Atoi(s.InitPID)
	if err != nil || pid <= 0 {
		return 0, fmt.Errorf("CRTOOLS_INIT_PID is %q at stage %s, and criu sets it to the pid of the root task", s.InitPID, s.Action)
	}
	return pid, nil
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

// refuse fails if there are errors among the findings that are not overridden. It logs what
// is overridden, and warnings.
func (h *Hook) refuse(findings preflight.Findings) error {
	if err := preflight.CheckForce(slices.Concat(h.Force, h.Config.Force)); err != nil {
		return err
	}
	findings = h.Judge(findings)
	for _, f := range findings.Of(preflight.SeverityWarning) {
		h.Log.Warn(f.String(), "finding", f.Name, "forced", f.Forced)
	}
	return findings.Err()
}
