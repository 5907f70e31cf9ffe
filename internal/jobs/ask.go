package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"

	"cucriu/hooks/preflight"
	"cucriu/internal/fault"
)

// ErrNoSupervisor says that no supervisor on this host takes care of a job.
var ErrNoSupervisor = errors.New("no supervisor")

// NoSupervisor returns [ErrNoSupervisor] for one job.
func NoSupervisor(job Local) error {
	meaning := "does not run on this host"
	remedy := "run this where it runs (cucriu jobs show says which host has it), or start it with the same cucriu run"
	switch job.State {
	case StateUnattended:
		meaning, remedy = "runs without a supervisor", "the same cucriu run takes it under care again"
	case StateFinished:
		meaning, remedy = "has finished", "there is nothing to ask for"
	}
	return preflight.AsRefusal(fault.Because(ErrNoSupervisor, fmt.Sprintf("%s (%s) %s", job.Name, job.Dir, meaning), remedy))
}

// Ask asks the supervisor of a job of this host for something, and waits until it is done.
// progress is told what is under way; it may be nil. When ctx ends, Ask returns at once; what the
// supervisor has begun goes on.
func Ask(ctx context.Context, runDir string, job Local, r Request, progress func(string)) (Answer, error) {
	conn, err := dial(localDir(runDir, job.Dir))
	if err != nil {
		return Answer{}, NoSupervisor(job)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return Answer{}, fmt.Errorf("ask the supervisor of %s: %w", job.Name, err)
	}
	decoder := json.NewDecoder(conn)
	for {
		var a Answer
		err := decoder.Decode(&a)
		switch {
		case ctx.Err() != nil:
			return a, fmt.Errorf("%w: not waited for any longer; what the supervisor of %s has begun goes on", context.Cause(ctx), job.Name)
		case err != nil:
			return a, fmt.Errorf("the supervisor of %s ended before it answered, see cucriu status: %w", job.Name, err)
		case a.Progress != "":
			if progress != nil {
				progress(a.Progress)
			}
			continue
		case a.Error != "" && a.Refused:
			return a, preflight.AsRefusal(errors.New(a.Error))
		case a.Error != "":
			return a, errors.New(a.Error)
		}
		return a, nil
	}
}

// dial connects to the supervisor that listens in a folder of the run directory.
func dial(folder string) (net.Conn, error) {
	dir, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return net.Dial("unix", socketIn(dir))
}
