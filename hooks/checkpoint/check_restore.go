package checkpoint

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"cucriu/criuutil/images"
	"cucriu/hooks"
	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
)

// CheckRestore finds the reasons for which [Restore] would refuse the image in dir, and what
// else there is to say about it. It touches nothing.
func CheckRestore(ctx context.Context, hook *hooks.Hook, dir string) (preflight.Findings, error) {
	findings, err := imageFindings(ctx, dir)
	if err != nil || slices.ContainsFunc(findings, func(f preflight.Finding) bool { return f.Name == preflight.FindingImage }) {
		return findings, err
	}
	recorded, err := image.ReadOptions(dir)
	if err != nil {
		return nil, err
	}
	more, err := hook.Host().CheckImage(ctx, dir)
	return slices.Concat(findings, preflight.SurroundingsFindings(recorded, os.Stdin), more), err
}

// imageFindings finds what keeps criu from restoring an image on this host.
func imageFindings(ctx context.Context, dir string) (preflight.Findings, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if absent := preflight.PresentFindings(dir); len(absent) > 0 {
		return absent, nil
	}
	if _, err := os.Stat(filepath.Join(dir, "inventory.img")); errors.Is(err, os.ErrNotExist) {
		return nil, nil // criu's images are streamed
	}
	if err := images.CheckWhole(dir); err != nil {
		return preflight.Findings{preflight.DamagedFinding(err)}, nil
	}
	tree, err := images.ReadTree(dir)
	if err == nil {
		err = tree.CheckFiles(dir)
	}
	if err != nil {
		return preflight.Findings{preflight.DamagedFinding(err)}, nil
	}
	if tree.OwnPIDs {
		return nil, nil
	}
	return preflight.TakenPIDs(ctx, tree.Numbers())
}
