package checkpoint

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/criuimage"
	"cucriu/internal/image"
	"cucriu/internal/inspect"
)

// CheckRestore finds the reasons for which [Restore] would refuse the image in dir, and what else there
// is to say about it. It touches nothing. Files that except picks are not compared.
func CheckRestore(ctx context.Context, hook *hooks.Hook, dir string, except func(path string) bool) (preflight.Findings, error) {
	findings, err := imageFindings(ctx, dir, fileCheck{except: except})
	if err != nil || findings.Has(preflight.FindingImage) {
		return findings, err
	}
	recorded, err := image.ReadOptions(dir)
	if err != nil {
		return nil, err
	}
	more, err := hook.Host().CheckImage(ctx, dir)
	return slices.Concat(findings, inspect.SurroundingsFindings(recorded, os.Stdin), more), err
}

// imageFindings finds what keeps criu from restoring an image on this host.
func imageFindings(ctx context.Context, dir string, check fileCheck) (preflight.Findings, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if absent := inspect.PresentFindings(dir); len(absent) > 0 {
		return absent, nil
	}
	if _, err := os.Stat(filepath.Join(dir, "inventory.img")); errors.Is(err, os.ErrNotExist) {
		return nil, nil // criu's images are streamed
	}
	if err := criuimage.CheckWhole(dir); err != nil {
		return preflight.Findings{preflight.Found(preflight.FindingImage, err)}, nil
	}
	tree, err := criuimage.ReadTree(dir)
	if err == nil {
		err = tree.CheckFiles(dir)
	}
	if err != nil {
		return preflight.Findings{preflight.Found(preflight.FindingImage, err)}, nil
	}
	findings, err := check.findings(dir)
	if err != nil || tree.OwnPIDs {
		return findings, err
	}
	taken, err := inspect.TakenPIDs(ctx, tree.Numbers())
	return append(taken, findings...), err
}
