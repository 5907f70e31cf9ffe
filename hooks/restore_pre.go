package hooks

import (
	"context"
	"errors"
	"os"
	"slices"

	"cucriu/criuutil"
	"cucriu/hooks/preflight"
	"cucriu/internal/criuimage"
	"cucriu/internal/image"
	"cucriu/internal/journal"
	"cucriu/internal/netlock"
	"cucriu/internal/pages"
)

// onPreRestore makes every check that needs no process. An error makes criu give up before it
// creates anything.
func (h *Hook) onPreRestore(ctx context.Context, criu *criuutil.Criu, stage Stage) (err error) {
	defer func() { err = preflight.AsRefusal(err) }()
	manifest, err := image.ReadManifest(stage.ImageDir)
	if errors.Is(err, os.ErrNotExist) {
		h.Log.Info("the image holds no CUDA process")
		return h.freeAddresses(ctx, stage.ImageDir)
	}
	if err == nil {
		err = manifest.MatchImages(stage.ImageDir)
	}
	if err != nil {
		return preflight.Findings{preflight.DamagedFinding(err)}.Err()
	}
	if stage.Client == nil { // cucriu restore has looked already
		if err := h.refuseTakenPIDs(ctx, stage.ImageDir); err != nil {
			return err
		}
	}
	go makeRoomForFiles(manifest.PageFiles())
	h.recoverFirst(ctx)
	if err := h.planRestore(ctx, manifest); err != nil {
		return err
	}
	inputs, err := manifest.OpenPages(pages.Files{Dir: stage.ImageDir})
	if err != nil {
		return preflight.Findings{preflight.DamagedFinding(err)}.Err()
	}
	defer image.ClosePages(inputs)
	var files []*os.File
	for _, input := range inputs {
		files = append(files, input.Files()...)
	}
	imageDir, err := stage.imagePath()
	if err == nil {
		err = h.freeAddresses(ctx, stage.ImageDir)
	}
	if err != nil {
		return err
	}
	mark, err := criu.MarkChildren()
	if err != nil {
		h.Log.Debug("what criu creates will not be known by its mark", "error", err)
		mark = 0
	}
	s, err := h.newSession(journal.Record{
		Kind: journal.KindRestore, Criu: criu.Ident, Mark: mark, CriuExe: executable(criu.PID), Client: stage.Client, ImageDir: imageDir,
		LeaveStopped: criu.LeaveStopped, RootParent: criu.RootParent, Manifest: &manifest, Hold: stage.Hold,
	})
	if err != nil {
		return err
	}
	defer s.LetGo()
	if err := s.doStep(journal.StepPreRestore, func() error { return h.startWatcher(s, files...) }); err != nil {
		return errors.Join(err, s.close(journal.OutcomeGone, "refused at pre-restore, nothing was created"))
	}
	h.note(s) // criu's time is counted from here
	return nil
}

// planRestore refuses an image whose GPU state has no place here.
func (h *Hook) planRestore(ctx context.Context, manifest image.Manifest) error {
	if len(manifest.Processes) == 0 {
		return nil
	}
	driver, err := h.OpenDriver()
	if err != nil {
		return err
	}
	plan, err := h.Host().PlanRestore(ctx, driver, manifest)
	for _, line := range plan.Explain() {
		h.Log.Info("GPU map: " + line)
	}
	return err
}

// freeAddresses frees the TCP addresses that criu is about to bind from connections that are over.
func (h *Hook) freeAddresses(ctx context.Context, imageDir string) error {
	addresses, err := criuimage.BoundAddresses(imageDir)
	if err != nil {
		return nil // criu itself judges its images, which may be streamed
	}
	n, err := netlock.FreeAddresses(ctx, addresses, func(n int) {
		h.Log.Warn("waiting up to 75 seconds for ports of the image: this kernel keeps closed connections of theirs (TIME_WAIT) and does not let them be removed", "connections", n)
	})
	if n > 0 && err == nil {
		h.Log.Info("ports of the image are free again: closed connections of theirs (TIME_WAIT) are removed", "connections", n)
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		h.Log.Debug("connections that are over cannot be looked for", "error", err)
		return nil
	}
	return err
}

// refuseTakenPIDs refuses a restore that needs pids which are in use. criu would find that
// only when it creates the processes.
func (h *Hook) refuseTakenPIDs(ctx context.Context, imageDir string) error {
	tree, err := criuimage.ReadTree(imageDir)
	if err != nil || tree.OwnPIDs {
		return nil // criu itself judges its images, which may be streamed
	}
	findings, err := preflight.TakenPIDs(ctx, tree.Numbers())
	if err != nil {
		return err
	}
	self := os.Getpid() // as an action script we have ended by then
	return h.refuse(slices.DeleteFunc(findings, func(f preflight.Finding) bool { return f.PID == self }))
}
