package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"cucriu/criuutil"
	"cucriu/hooks"
	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/core/watch"
	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/proc"
)

// RequireMemory refuses the restore of an image for which the host has too little memory beside more bytes of it, and
// what other restores still need. [Restore] does that without more.
func RequireMemory(ctx context.Context, hook *hooks.Hook, dir string, more uint64) error {
	env, self := session.Of(hook), os.Getpid()
	var manifest *imagedir.Manifest // nil: no process uses CUDA
	if m, err := imagedir.ReadManifest(dir); err == nil {
		manifest = &m
	}
	need := inspect.NeedOf(dir, manifest, self)
	need.Bytes += more
	err := env.AwaitRoom(ctx, func() error {
		return need.Require(proc.System{}, self, env.PromisedMemory(nil, nil))
	})
	if err == nil || ctx.Err() != nil {
		return err
	}
	return env.Refuse(preflight.Findings{inspect.PlanFinding(err)})
}

// Restore has criu restore the image in dir, and returns once the job runs, or is held as the options
// say. After an error no process of it is left and the image is unchanged, unless the error wraps
// [hooks.ErrNotBack] or the configuration says to leave the processes. [preflight.Refused] tells
// whether criu had created anything.
func Restore(ctx context.Context, hook *hooks.Hook, dir string, options Options) (Result, error) {
	env := session.Of(hook)
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Result{}, preflight.AsRefusal(fmt.Errorf("image directory: %w", err))
	}
	refused := func(err error) (Result, error) {
		env.KeepRefusal(journal.Refusal{Kind: journal.KindRestore, ImageDir: dir}, err)
		return Result{}, preflight.AsRefusal(err)
	}
	files := fileCheck{options.isInherited, options.RPC.GetSkipFileRwxCheck()}
	findings, err := imageFindings(ctx, env, imagedir.Open(dir), files)
	if err := errors.Join(session.GivenUp(ctx, err), findings.Err()); err != nil {
		return refused(err)
	}
	if err := addRecorded(env, &options, dir); err != nil {
		return refused(err)
	}
	d, err := start(env, journal.KindRestore, options, dir)
	if err != nil {
		return refused(err)
	}
	defer d.close()
	ctx, over := context.WithCancel(ctx)
	defer d.endCheck(over)
	response, err := d.do(ctx)
	if err != nil && !d.staged && ctx.Err() == nil {
		_, err = refused(err)
	}
	s, finishErr := watch.Finish(ctx, env, d.kind, proc.Ident(d.criu.Ident), d.cause)
	if err = errors.Join(err, finishErr); err == nil && s != nil && s.Outcome != journal.OutcomeRunning && s.Outcome != journal.OutcomeStopped && !s.Held() {
		// criu ignores what fails after its own part.
		err = errors.New(s.Message)
	}
	if err != nil {
		if finishErr == nil {
			err = d.withOutcome(err, restoreOutcome(s, !errors.Is(err, criuutil.ErrNoAnswer)))
		}
		return Result{Session: statusIf(s), Log: d.logPath()}, err
	}
	r := d.result(s, int(response.GetRestore().GetPid()), dir)
	r.Downtime = r.Total
	return r, nil
}

// checkImage has an image read again and compared with its checksums, beside criu, and fails at post-restore
// if it is damaged: that is the last stage at which criu undoes a restore. criu that punches holes
// into what it has read leaves nothing to compare, and waits.
func (d *criuSession) checkImage(ctx context.Context, action string) error {
	if action == criuutil.StagePreRestore {
		check := d.options.CheckImage
		if check == nil {
			check = func(ctx context.Context) error { return image.Open(d.stage.ImageDir).Check(ctx) }
		}
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err = failpoint.Hit(ctx, "restore.checksums", 0); err == nil {
				err = check(ctx)
			}
		}()
		d.checked = func() error {
			<-done
			return err
		}
	}
	if d.checked == nil || action != criuutil.StagePostRestore && !d.criu.AutoDedup {
		return nil
	}
	if d.env.Progress != nil {
		d.env.Progress(hooks.Step{Name: StepCheckImage})
	}
	err := d.checked()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w: cancelled at criu's stage %s", context.Cause(ctx), action)
	case err != nil:
		err = fmt.Errorf("image %s: %w", d.stage.ImageDir, err)
		d.cause = err.Error()
	}
	return err
}

// endCheck ends a check that nobody waits for any more.
func (d *criuSession) endCheck(cancel func()) {
	cancel()
	if d.checked != nil {
		_ = d.checked()
	}
}

// restoreOutcome says what became of the job of a restore that failed; empty if that is not known.
// answered says that criu told of its own failure.
func restoreOutcome(s *journal.Session, answered bool) string {
	switch {
	case s == nil && !answered:
		return "" // a tree without CUDA, and nobody looked
	case s == nil || s.Outcome == journal.OutcomeKilled:
		return "this restore has left nothing running, and the image is unchanged"
	case s.Outcome == journal.OutcomeRunning:
		return "the job is restored and runs"
	case s.Outcome == journal.OutcomeStopped:
		return "the job is restored and stopped"
	case s.Outcome == journal.OutcomeLeft:
		return ""
	}
	outcome, _, _ := strings.Cut(s.Message, "; the cause: ") // which the error has
	return outcome
}
