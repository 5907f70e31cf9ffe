package prepare

import (
	"context"
	"slices"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/preflight"
)

// JudgeSource finds out at the source whether the job that [Describe] has described can leave: what
// cucriu check says of this machine and of a dump, and whether there is room for the job until it
// runs at the destination. It touches nothing.
func JudgeSource(ctx context.Context, hook *hooks.Hook, j *Job, room Room) (*Judgement, error) {
	hook = hook.Filled()
	findings, err := machineFindings(ctx, hook, j, room.Criu)
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
		_, found, err := checkpoint.CriuOptions(ctx, j.RootPID, room.Criu, false)
		if err != nil {
			return nil, err
		}
		more = append(more, found...)
	}
	memory, ahead, err := room.findings(j, leaving)
	if err != nil {
		return nil, err
	}
	judgement := Judged(hook, j.Host.Name, slices.Concat(findings, more, memory, connectionFindings(j, room.TCP)))
	judgement.RoomAhead = ahead
	return judgement, nil
}
