package checkpoint

import (
	"context"
	"slices"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
)

// CheckDump finds the reasons for which [Dump] would refuse to dump the tree below root, and
// what else there is to say about it. dir is the image directory; it is empty if that is not
// known. CheckDump touches nothing.
func CheckDump(ctx context.Context, hook *hooks.Hook, root int, dir string) (preflight.Findings, error) {
	var findings preflight.Findings
	if dir != "" {
		findings = append(findings, preflight.DirectoryFindings(dir)...)
	}
	more, err := hook.Host().CheckJob(ctx, root, dir)
	return slices.Concat(findings, more), err
}
