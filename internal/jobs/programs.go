package jobs

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"cucriu/internal/jobs/inside"
	"cucriu/internal/jobs/job"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/criuimage"
)

// program prepares a program of the user's to run beside the job; nil if there is none.
func (s *core) program(option string, args []string, as *syscall.Credential) *job.Program {
	if len(args) == 0 {
		return nil
	}
	p := &job.Program{Option: option, Args: args, Env: environment(s.Options), User: as}
	if s.user != nil {
		p.Env = s.user.Environment(p.Env)
	}
	p.Env = append(p.Env, "CUDA_VISIBLE_DEVICES=") // with CUDA in use, a dump or restore of the job could fail
	return p
}

// programUser is whose the programs beside a job are that is restored: its root process's user.
func (s *core) programUser(c store.Checkpoint) (*syscall.Credential, error) {
	if len(s.OnStart)+len(s.OnStarted) == 0 {
		return nil, nil
	}
	return rootUser(c)
}

// rootUser returns as whom the root process of a checkpoint ran.
func rootUser(c store.Checkpoint) (*syscall.Credential, error) {
	all, err := criuimage.ReadCredentials(c.Dir)
	for _, of := range all {
		if of.TID == c.RootPID {
			return &syscall.Credential{Uid: of.UIDs[1], Gid: of.GIDs[1], Groups: of.Groups}, nil
		}
	}
	return nil, errors.Join(errors.New("the user of the checkpoint's first process is not known"), err)
}

// runStarted runs a program now that the job does. Its failure changes nothing.
func (s *supervisor) runStarted(ctx context.Context, at instance, p *job.Program) { // at may be closed while this runs
	a, err := at.ask(ctx, inside.Request{Op: inside.Run, Program: p})
	switch {
	case ctx.Err() != nil || !at.sandbox.Alive(): // the job leaves, or has ended
	case err != nil:
		s.say(fmt.Sprintf("warning: %v; %s keeps running", err, s.name))
	case len(a.Notes) > 0 && a.Notes[0] != "":
		s.say(a.Notes[0])
	}
}
