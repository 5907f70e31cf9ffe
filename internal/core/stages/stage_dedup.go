package stages

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"cucriu/criuutil"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/pages"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/records"
	"cucriu/internal/kit/rundir"
)

// criu may call the hook twice at a stage: two of its configuration files name it, or criu is older
// than 4.2 and reads a file twice that is named over RPC. The second call would undo what the first has
// done. So it does nothing, and ends as the first did.

// stageCall is the latest call of the hook by a criu. It is written down because most calls of the hook
// have no session.
type stageCall struct {
	Criu     proc.Ident   `json:"criu"`
	Action   string       `json:"action"`
	Root     string       `json:"root"`
	Mark     int64        `json:"mark"` // of criu's request, 0 if it could not be marked
	ImageDir pages.FileID `json:"image_dir"`
	Ended    bool         `json:"ended"`
	Error    string       `json:"error,omitempty"`
}

// callKind is volatile: when the host ends, criu ends, too.
var callKind = records.Kind[stageCall]{Version: 1, Volatile: true}

// beginsRequest reports whether the stage is the first of a request to criu.
func beginsRequest(action string) bool {
	return action == criuutil.StagePreDump || action == criuutil.StagePreRestore
}

// once does a stage of a criu only once.
func once(env *session.Env, criu *criuutil.Criu, stage Stage, do func() error) error {
	path, err := stageFile(env.Config.RunDir, proc.Ident(criu.Ident))
	if err != nil {
		return do() // a stage that needs the run directory says what is wrong with it
	}
	call := stageCall{Criu: proc.Ident(criu.Ident), Action: stage.Action, Root: stage.InitPID}
	if info, err := os.Stat(stage.ImageDir); err == nil {
		call.ImageDir = pages.Identify(info)
	}
	before, err := callKind.Read(path)
	again := err == nil && before.Criu == call.Criu && before.Action == call.Action
	if beginsRequest(stage.Action) {
		mark, err := criu.MarkRequest(stage.ImageDir)
		if err != nil {
			env.Log.Debug("criu's request could not be marked", "error", err)
			mark = 0
		}
		call.Mark = mark
		// One criu may serve several requests, one after the other.
		again = again && before.Mark == call.Mark && before.Root == call.Root && before.ImageDir == call.ImageDir
	}
	switch {
	case again && before.Ended && before.Error == "":
		env.Log.Info("criu called the hook a second time at this stage, where nothing is left to do: it is configured twice in criu's configuration, or criu is older than 4.2")
		return nil
	case again && before.Ended:
		return errors.New(before.Error)
	case again && slices.Contains([]string{criuutil.StagePreDump, criuutil.StagePostDump, criuutil.StagePreRestore}, stage.Action):
		return fmt.Errorf("the first call of the hook at stage %s was interrupted", stage.Action)
	}
	writeStageCall(env.Log, path, call)
	err = do()
	call.Ended = true
	if err != nil {
		call.Error = err.Error()
	}
	writeStageCall(env.Log, path, call)
	return err
}

// stageFile names the file in which the latest call by a criu is written down. It removes the files of
// those criu processes that are gone.
func stageFile(runDir string, criu proc.Ident) (string, error) {
	dir, err := rundir.Make(runDir, "stages")
	if err != nil {
		return "", err
	}
	own := filepath.Join(dir, fmt.Sprintf("%d-%d-%d.json", criu.PIDNamespace, criu.PID, criu.StartTime))
	files, err := durable.Match(dir, "*.json")
	if err != nil {
		return "", err
	}
	for _, file := range files {
		if file != own && isStale(file) {
			_ = os.Remove(file)
		}
	}
	return own, nil
}

// isStale reports whether the criu that a file is about is gone. A criu in another pid namespace is
// taken for gone after a day.
func isStale(file string) bool {
	if call, err := callKind.Read(file); err == nil {
		if gone, err := session.Gone(call.Criu); err == nil {
			return gone
		}
	}
	info, err := os.Stat(file)
	return err == nil && time.Since(info.ModTime()) > 24*time.Hour
}

// writeStageCall writes a call down.
func writeStageCall(log *slog.Logger, path string, call stageCall) {
	if err := callKind.Write(path, call); err != nil {
		log.Warn("the run directory cannot be written: a second call of this stage by the same criu would not be detected", "error", err)
	}
}
