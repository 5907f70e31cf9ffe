package stages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"

	"cucriu/criuutil"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/proc"
)

// To restore into an existing pid namespace, criu enters it before it creates the root task. Its action
// scripts are inside then, too: they see the pids of the host in /proc, and none of these works in a
// system call. The watcher, which was started earlier and is outside, does the stages in the hook's
// place.

const stageSocket = "stage.sock" // in the session's directory

// insideStages are the stages at which the hook may be inside such a namespace.
var insideStages = []string{criuutil.StageSetupNamespaces, criuutil.StagePostSetupNamespaces, criuutil.StagePostRestore, criuutil.StageNetworkUnlock, criuutil.StagePreResume, criuutil.StagePostResume}

type stageAnswer struct {
	Error string `json:"error,omitempty"`
}

// runInside has the watcher do a stage. Without a session there is nothing to do: no process of the
// image uses CUDA.
func runInside(ctx context.Context, env *session.Env, stage Stage) error {
	id, err := criuutil.IdentifyCriu(stage.ImageDir)
	if err != nil {
		return err
	}
	criu := proc.Ident(id)
	read, err := journal.Read(journal.Path(env.Config.RunDir, journal.KindRestore, criu))
	s := env.TakeOn(read, session.ByCommand)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) || err == nil && (s.Criu != criu || s.Client != nil) {
		return nil
	}
	if err != nil {
		return err
	}
	if s.Outcome != "" {
		if s.Root == nil || strconv.Itoa(s.Root.PID) != stage.InitPID {
			return nil // the session of an earlier request
		}
		return reportEnded(s)
	}
	answer, err := askWatcher(ctx, s.Dir(), stage)
	if err != nil {
		return fmt.Errorf("criu restores into a pid namespace that exists already, where the watcher runs this stage, but it does not answer: %w", err)
	}
	if answer.Error != "" {
		return errors.New(answer.Error)
	}
	return nil
}

func askWatcher(ctx context.Context, session string, stage Stage) (stageAnswer, error) {
	var answer stageAnswer
	dir, err := os.Open(session)
	if err != nil {
		return answer, err
	}
	defer dir.Close()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", proc.PathIn(dir, stageSocket))
	if err != nil {
		return answer, err
	}
	defer conn.Close()
	if err := json.NewEncoder(conn).Encode(stage); err != nil {
		return answer, err
	}
	return answer, json.NewDecoder(conn).Decode(&answer)
}

// ServeInside does the stages of a restore for a hook that is inside. It calls over when a stage has
// brought the session to its end.
func ServeInside(ctx context.Context, s *session.Session, over func()) (stop func(), err error) {
	dir, err := os.Open(s.Dir())
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", proc.PathIn(dir, stageSocket))
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("socket for the stages: %w", err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // stopped
			}
			var answer stageAnswer
			if err := serveStage(ctx, s, conn); err != nil {
				answer.Error = err.Error()
			}
			_ = json.NewEncoder(conn).Encode(answer)
			conn.Close()
			if now, err := journal.Read(s.Dir()); err == nil && now.Outcome != "" {
				over()
			}
		}
	}()
	return func() { listener.Close(); dir.Close() }, nil
}

func serveStage(ctx context.Context, s *session.Session, conn net.Conn) error {
	var stage Stage
	if err := json.NewDecoder(conn).Decode(&stage); err != nil {
		return fmt.Errorf("stage: %w", err)
	}
	if !slices.Contains(insideStages, stage.Action) {
		return fmt.Errorf("the watcher does not handle stage %q", stage.Action)
	}
	criu, err := criuutil.OpenCriu(s.Criu.PID)
	if err != nil {
		return err
	}
	defer criu.Close()
	if proc.Ident(criu.Ident) != s.Criu {
		return fmt.Errorf("%v: %w", s.Criu, proc.ErrGone)
	}
	return Serve(ctx, s.Env, criu, stage)
}
