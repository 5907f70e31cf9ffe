package checkpoint

import (
	"context"
	"slices"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/inspect"
)

// CheckDump finds the reasons for which [Dump] would refuse to dump the tree below root, and what else
// there is to say about it. It touches nothing. dir is the image directory, empty if it is not known;
// criu is the path of the criu that is to dump, empty for the system's.
func CheckDump(ctx context.Context, hook *hooks.Hook, root int, dir, criu string) (preflight.Findings, error) {
	findings, err := rootFindings(hook, root)
	if err != nil {
		return nil, err
	}
	lookInside := findings.Err() == nil
	if dir != "" {
		findings = append(findings, inspect.DirectoryFindings(dir)...)
	}
	if !lookInside { // what else is found would only follow from it
		return findings, nil
	}
	host := hook.Host()
	host.Criu = criu
	more, err := host.CheckJob(ctx, root, dir)
	if findings.Has(preflight.FindingSession) {
		// A dump waits until the session is over, and it is the reason for the state.
		more = slices.DeleteFunc(more, func(f preflight.Finding) bool { return f.Name == preflight.FindingCUDAState })
	}
	return slices.Concat(findings, inspect.ContainerFindings(root), more), err
}

// refuseDump refuses a dump before a criu is started for it.
func refuseDump(hook *hooks.Hook, root int, dir string) error {
	findings, err := rootFindings(hook, root)
	if err != nil {
		return err
	}
	return hook.Judge(slices.Concat(findings, inspect.DirectoryFindings(dir), inspect.ContainerFindings(root))).Err()
}

// rootFindings finds what keeps the tree below root from being dumped, whatever is in it.
func rootFindings(hook *hooks.Hook, root int) (preflight.Findings, error) {
	findings, err := inspect.RootFindings(root)
	if err != nil || findings.Err() != nil {
		return findings, err
	}
	return hook.SessionFindings(root)
}
