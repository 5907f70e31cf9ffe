package prepare

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"cucriu/criuutil/proc"
	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/preflight"
)

// JudgeSource finds out at the source whether the job that [Describe] has described can leave: what
// cucriu check says of this machine and of a dump, and whether there is room for the job until it
// runs at the destination. It touches nothing.
func JudgeSource(ctx context.Context, hook *hooks.Hook, j *Job, room Room) (*Judgement, error) {
	hook = hook.Filled()
	findings, err := machineFindings(ctx, hook.Host(), j, room.Criu)
	if err != nil {
		return nil, err
	}
	more, err := checkpoint.CheckDump(ctx, hook, j.RootPID, "", room.Criu)
	if err != nil {
		return nil, err
	}
	more = slices.DeleteFunc(more, func(f preflight.Finding) bool {
		// A job that fails because of the machine's driver reports this again. What is to be
		// staged is in host-memory.
		return slices.Contains(findings, f) || f.Name == preflight.FindingStagingMemory
	})
	if j.manifest() == nil {
		// CheckDump leaves a tree without CUDA to criu.
		wanted, err := preflight.OptionsOf(ctx, preflight.Asked{Root: j.RootPID, Criu: room.Criu})
		if err != nil {
			return nil, err
		}
		more = append(more, wanted.Findings...)
	}
	memory, ahead, err := room.findings(j, leaving)
	if err != nil {
		return nil, err
	}
	container, err := containerFindings(j)
	if err != nil {
		return nil, err
	}
	judgement := judged(hook, j.Host.Name, slices.Concat(findings, more, container, memory, connectionFindings(j, room.TCP)))
	judgement.RoomAhead = ahead
	return judgement, nil
}

// containerFindings finds a job whose root directory is not this host's. Only who has made the
// mounts there can tell criu of them.
func containerFindings(j *Job) (preflight.Findings, error) {
	if !j.Own.Mount {
		return nil, nil
	}
	theirs, err := os.Stat(filepath.Join("/proc", strconv.Itoa(j.RootPID), "root"))
	if err != nil {
		return nil, proc.GoneOr(j.RootPID, err)
	}
	ours, err := os.Stat("/")
	if err != nil || os.SameFile(theirs, ours) {
		return nil, err
	}
	return preflight.Findings{{
		Name: preflight.FindingContainer, Severity: preflight.SeverityError, PID: j.RootPID, Process: j.nameOf(j.RootPID),
		Message: "is in a container, whose mounts criu does not know",
		Remedy:  "let its engine move it (runc checkpoint, podman container checkpoint); with --dry-run it can be forced",
	}}, nil
}
