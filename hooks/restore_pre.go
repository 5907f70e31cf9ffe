package hooks

import (
	"context"
	"errors"
	"os"

	"cucriu/criuutil"
	"cucriu/criuutil/pages"
	"cucriu/hooks/image"
	"cucriu/hooks/journal"
	"cucriu/hooks/preflight"
)

// onPreRestore makes every check that needs no process. An error makes criu give up before it
// creates anything.
func (h *Hook) onPreRestore(ctx context.Context, criu *criuutil.Criu, stage Stage) (err error) {
	defer func() { err = preflight.AsRefusal(err) }()
	manifest, err := image.ReadManifest(stage.ImageDir)
	if errors.Is(err, os.ErrNotExist) {
		h.Log.Info("the image holds no CUDA process: nothing to do")
		return nil
	}
	if err == nil {
		err = manifest.MatchImages(stage.ImageDir)
	}
	if err != nil {
		return preflight.Findings{preflight.DamagedFinding(err)}.Err()
	}
	go makeRoomForFiles(manifest.PageFiles())
	h.recoverFirst(ctx)
	driver, err := h.OpenDriver()
	if err != nil {
		return err
	}
	plan, err := h.Host().PlanRestore(ctx, driver, manifest)
	for _, line := range plan.Explain() {
		h.Log.Info("GPU map: " + line)
	}
	if err != nil {
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
		LeaveStopped: criu.LeaveStopped, RootParent: criu.RootParent, Manifest: &manifest,
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
