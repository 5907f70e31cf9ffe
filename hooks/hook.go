package hooks

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"

	"cucriu/criuutil"
	"cucriu/cudackpt"
	"cucriu/internal/config"
)

// Hook runs the stages of criu's action script.
type Hook struct {
	Config config.Config
	Log    *slog.Logger
	// Watcher is the command that runs [Hook.Watch]; the session's directory
	// is appended to it.
	Watcher []string
	// Force names the findings that are errors and are to be overridden: see
	// [Forceable]. The environment and the configuration cannot set it.
	Force []string
}

// Stage is what criu tells an action script through its environment.
type Stage struct {
	Action   string // CRTOOLS_SCRIPT_ACTION
	ImageDir string // CRTOOLS_IMAGE_DIR: /proc/PID/fd/N of criu itself
	InitPID  string // CRTOOLS_INIT_PID: the root task, a pid that criu's caller sees
}

// StageFrom reads the stage from an environment.
func StageFrom(getenv func(string) string) Stage {
	return Stage{
		Action:   getenv("CRTOOLS_SCRIPT_ACTION"),
		ImageDir: getenv("CRTOOLS_IMAGE_DIR"),
		InitPID:  getenv("CRTOOLS_INIT_PID"),
	}
}

// Run does what the stage asks for. Stages that need nothing of us succeed at
// once. criu aborts on an error at pre-dump and pre-restore, and ignores one at
// pre-resume and post-resume, where Run therefore ends the tree itself.
func (h *Hook) Run(ctx context.Context, stage Stage) error {
	var do func(context.Context, *criuutil.Criu, Stage) error
	switch stage.Action {
	case "pre-dump":
		do = h.preDump
	case "post-dump":
		do = h.postDump
	case "pre-restore":
		do = h.preRestore
	case "setup-namespaces", "post-setup-namespaces", "post-restore":
		do = h.noteRoot
	case "pre-resume":
		do = h.preResume
	case "post-resume":
		do = h.postResume
	case "":
		return fmt.Errorf("CRTOOLS_SCRIPT_ACTION is not set: this program is an action script of criu (criu dump --action-script %s …), not a command", "cucriu-hook")
	default:
		return nil
	}
	criu, err := criuutil.CriuOf(stage.ImageDir)
	if err != nil {
		return err
	}
	defer criu.Close()
	return do(ctx, criu, stage)
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
	return cudackpt.Open(cudackpt.WithLibrary(h.Config.Driver.Library), cudackpt.WithRoot(h.Config.Driver.Root))
}
