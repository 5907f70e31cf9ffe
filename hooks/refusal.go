package hooks

import (
	"errors"
	"strings"

	"cucriu/criuutil"
	"cucriu/hooks/preflight"
	"cucriu/internal/image"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
)

// KeepRefusal keeps the reason for which a dump or a restore was refused, for the status
// command. root is 0 if it is not known, and criu is 0 if none was started.
func (h *Hook) KeepRefusal(kind journal.Kind, criu, root int, imageDir string, err error) {
	r := journal.Refusal{Kind: kind, CriuPID: criu, RootPID: root, ImageDir: imageDir}
	if refused := new(preflight.RefusedError); errors.As(err, &refused) {
		r.Findings = refused.Findings
	} else {
		r.Message = err.Error()
	}
	h.Filled().keep(r)
}

func (h *Hook) keep(r journal.Refusal) {
	root := r.RootPID
	if status, err := proc.ReadStatus(root); err == nil && root > 0 {
		r.Process = status.Name
	}
	if id, err := proc.IdentOf(root); err == nil && root > 0 {
		r.Root = &id
	}
	if err := journal.KeepRefusal(h.Config.RunDir, r); err != nil {
		h.Log.Debug("the reason is not kept", "error", err)
	}
}

// keepRefusalOf keeps why a stage was refused. criu's own name for the image directory, which ends
// with criu, is not kept.
func (h *Hook) keepRefusalOf(criu *criuutil.Criu, stage Stage, err error) {
	r := journal.Refusal{Kind: journal.KindDump, CriuPID: criu.PID}
	if stage.Action == criuutil.StagePreRestore {
		r.Kind = journal.KindRestore
	}
	r.RootPID, _ = stage.root() // a restore has none yet
	dir, pathErr := stage.imagePath()
	if pathErr != nil {
		dir = ""
	}
	r.ImageDir = image.FinalName(dir)
	named := func(text string) string { return strings.ReplaceAll(text, stage.ImageDir, r.ImageDir) }
	if refused := new(preflight.RefusedError); errors.As(err, &refused) {
		for _, f := range refused.Findings {
			f.Message, f.Remedy = named(f.Message), named(f.Remedy)
			r.Findings = append(r.Findings, f)
		}
	} else {
		r.Message = named(err.Error())
	}
	h.keep(r)
}
