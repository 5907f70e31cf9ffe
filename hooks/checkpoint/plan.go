package checkpoint

import (
	"context"
	"errors"

	"cucriu/cudackpt"
	"cucriu/hooks"
	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
	"cucriu/internal/core/gpumap"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/imagedir"
)

// Plan says which GPUs of this host take the place of those that a job could see.
type Plan struct {
	Assignments []Assignment // in the order in which the job saw its GPUs
	// Unused says, of each rule of the map that applies to no GPU of the job, that it does not.
	Unused []string
}

// Assignment says where one GPU of a job goes.
type Assignment struct {
	From, To cudackpt.GPU
	Reason   string // "rule", or how To was found without one
	Rule     string // the user's rule, in words; empty if To was found without one
}

// PlanError says why this host cannot take an image.
type PlanError struct {
	Finding preflight.Finding
	// DriverVersion is that of this host, if the image was made with another.
	DriverVersion string
	err           error
}

func (e *PlanError) Error() string { return e.err.Error() }

func (e *PlanError) Unwrap() error { return e.err }

// PlanGPUs plans where the GPUs of an image go on this host. The error is a [PlanError] if the host cannot take it:
// another driver, a map that is not possible, or too little free memory. PlanGPUs changes nothing, and a restore makes
// its own plan, with the GPUs that its processes really see.
func PlanGPUs(ctx context.Context, hook *hooks.Hook, m image.Manifest) (Plan, error) {
	host := session.Of(hook).Host()
	driver, err := host.CheckpointDriver()
	if err != nil {
		return Plan{}, err
	}
	manifest := imagedir.Manifest{DriverVersion: m.DriverVersion, RootPID: m.RootPID}
	for _, p := range m.Processes {
		manifest.Processes = append(manifest.Processes, imagedir.Process{PID: p.PID, Name: p.Name, GPUs: p.GPUs, MemoryBytes: p.MemoryBytes})
	}
	found, err := host.PlanRestore(ctx, driver, manifest)
	if err != nil {
		refused := &PlanError{Finding: inspect.PlanFinding(err), err: err}
		if version, is := errors.AsType[*inspect.DriverVersionError](err); is {
			refused.DriverVersion = version.Host
		}
		err = refused
	}
	var plan Plan
	for _, a := range found.Assignments {
		planned := Assignment{From: a.From, To: a.To, Reason: a.Reason.String()}
		if a.Rule != nil {
			planned.Rule = a.Rule.String()
		}
		plan.Assignments = append(plan.Assignments, planned)
	}
	for _, rule := range found.Unused {
		plan.Unused = append(plan.Unused, gpumap.UnusedNote(rule))
	}
	return plan, err
}

// CheckGPUs finds the reasons for which the GPUs and the driver of this host could not take the image in dir, and
// where its GPUs would go. [CheckRestore] finds all reasons.
func CheckGPUs(ctx context.Context, hook *hooks.Hook, dir string) (preflight.Findings, error) {
	return session.Of(hook).Host().CheckImage(ctx, imagedir.Open(dir))
}
