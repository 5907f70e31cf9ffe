package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/prometheus/procfs"

	"cucriu/cudackpt"
	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/core/engine"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
)

// CUDAProcess is a CUDA process as an operator sees it.
type CUDAProcess struct {
	PID  int    `json:"pid"`
	Name string `json:"name"`
	// State is the driver's ("running", "locked", "checkpointed", "failed"), "suspended" where a suspend
	// is known to hold the process and the driver was not asked, or "unknown". Note says why it is
	// unknown, or that the process is stopped.
	State string `json:"state"`
	Note  string `json:"note,omitempty"`
	// Unhooked says that criu has restored the process without cucriu-hook, or a restore that failed has left it, so that
	// it never runs, or that another run directory knows what holds it. Note says what brings the job back.
	Unhooked bool `json:"unhooked,omitempty"`
	// GPUs are the GPUs that the process can see.
	GPUs []cudackpt.GPU `json:"gpus"`
	// MemoryBytes is what the process holds on each GPU now: nothing while it is checkpointed.
	MemoryBytes map[cudackpt.UUID]uint64 `json:"memory_bytes"`
}

// Remedy says how a process is recovered from its state, if no session of ours holds it; empty if it need not be.
func (p CUDAProcess) Remedy() string {
	for _, state := range []cudackpt.State{cudackpt.StateLocked, cudackpt.StateCheckpointed, cudackpt.StateFailed} {
		if p.State == state.String() {
			return inspect.StateRemedy(p.PID, state)
		}
	}
	return ""
}

const (
	unknownState   = "unknown"
	suspendedState = "suspended"
	noteStopped    = "stopped"
)

// askTimeout bounds how long the driver is asked about one process.
const askTimeout = 5 * time.Second

// Processes finds the CUDA processes of this host that this program may look at. It disturbs none of
// them: one that is stopped or frozen cannot answer, and its state stays unknown unless a suspend holds it.
func Processes(ctx context.Context, hook *hooks.Hook) ([]CUDAProcess, error) {
	env := session.Of(hook)
	all, err := procfs.AllProcs()
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, proc := range all {
		// Leave out a process that has ended or is another user's.
		if uses, err := inventory.MapsLibcuda(proc.PID); err == nil && uses && proc.PID != os.Getpid() {
			pids = append(pids, proc.PID)
		}
	}
	if len(pids) == 0 {
		return []CUDAProcess{}, nil // no driver is needed to say so
	}
	slices.Sort(pids)
	driver, err := env.OpenDriver()
	if err != nil {
		return nil, err
	}
	found := make([]*CUDAProcess, len(pids))
	proc.AtOnce(len(pids), len(pids), func(i int) { found[i] = look(ctx, driver, env.Config.RunDir, pids[i]) })
	processes := []CUDAProcess{}
	for _, p := range found {
		if p == nil {
			continue
		}
		if p.Note == noteStopped {
			if s, err := sessionOfProcess(env.Config.RunDir, p.PID); err == nil && s != nil && s.Suspended() {
				p.State = suspendedState
			}
		}
		if err := session.Unhooked(env.Config.RunDir, p.PID); err != nil {
			p.Unhooked, p.Note = true, err.Error()
		}
		processes = append(processes, *p)
	}
	return processes, nil
}

// look describes a process, nil if it has no CUDA or has ended.
func look(ctx context.Context, driver *cudackpt.Driver, runDir string, pid int) *CUDAProcess {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	status, err := proc.ReadStatus(pid)
	if err != nil {
		return nil
	}
	p := &CUDAProcess{PID: pid, Name: status.Name, State: unknownState}
	// This is the one call that does not block if the process is stopped or frozen.
	if _, err := driver.Process(pid).RestoreThreadID(ctx); err != nil {
		if errors.Is(err, cudackpt.ResultNotInitialized) {
			return nil
		}
		if _, gone := proc.ReadStatus(pid); gone != nil {
			return nil
		}
		p.Note = err.Error()
		return p
	}
	p.State, p.Note = stateOf(ctx, driver, runDir, pid)
	if p.GPUs, err = inspect.VisibleGPUs(ctx, driver, pid); err != nil && p.Note == "" {
		p.Note = err.Error()
	}
	if p.MemoryBytes, err = driver.ProcessMemory(ctx, pid); err != nil && p.Note == "" {
		p.Note = err.Error()
	}
	if _, gone := proc.ReadStatus(pid); gone != nil { // which the notes would be about
		return nil
	}
	return p
}

// stateOf asks for the state of a process if it can answer. While a dump or restore is at work on it, the driver
// answers only when it is through with what that has asked for.
func stateOf(ctx context.Context, driver *cudackpt.Driver, runDir string, pid int) (state, note string) {
	if s, err := sessionOfProcess(runDir, pid); err == nil && s != nil && !s.Suspended() {
		return unknownState, s.Conflict().Error()
	}
	if frozen, err := proc.FrozenBy(pid); err == nil && len(frozen) > 0 {
		return unknownState, "frozen by " + frozen[0].Dir
	}
	if stopped, err := proc.Stopped(pid); err == nil && stopped {
		return unknownState, noteStopped
	}
	answer, err := driver.Process(pid).State(ctx)
	if err != nil {
		return unknownState, err.Error()
	}
	return answer.String(), ""
}

// States describes the processes with these pids, which must have CUDA. If one is stopped, its restore
// thread runs until the driver has answered, unless a session is at work on the process.
func States(ctx context.Context, hook *hooks.Hook, pids []int) ([]CUDAProcess, error) {
	env := session.Of(hook)
	driver, err := env.Host().CheckpointDriver()
	if err != nil {
		return nil, preflight.AsRefusal(err)
	}
	processes := make([]CUDAProcess, 0, len(pids))
	for _, pid := range pids {
		s, err := sessionOfProcess(env.Config.RunDir, pid)
		if err != nil {
			return nil, preflight.AsRefusal(err)
		}
		p := look(ctx, driver, env.Config.RunDir, pid)
		if p == nil {
			if _, err := sessionOfProcess(env.Config.RunDir, pid); err != nil { // it has ended meanwhile
				return nil, preflight.AsRefusal(err)
			}
			return nil, preflight.AsRefusal(fmt.Errorf("process %d uses no CUDA: name one that does (cucriu status lists them)", pid))
		}
		if p.Note == noteStopped && (s == nil || s.Suspended()) {
			if err := askStopped(ctx, driver, p); err != nil {
				return nil, err
			}
		}
		processes = append(processes, *p)
	}
	return processes, nil
}

func askStopped(ctx context.Context, driver *cudackpt.Driver, p *CUDAProcess) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	process, err := proc.Open(p.PID)
	if err != nil {
		return err
	}
	defer process.Close()
	t := &engine.Target{Process: process, Member: &journal.Member{Process: inspect.Process{Stopped: true}}, CUDA: driver.Process(p.PID)}
	return engine.StatesOf(ctx, []*engine.Target{t}, func(_ *engine.Target, state cudackpt.State) error {
		p.State = state.String()
		return nil
	})
}
