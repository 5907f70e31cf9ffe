package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"cucriu/hooks"
	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/core/watch"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
)

// Dump has criu dump the tree of options.RPC.Pid into dir, which is complete or absent at any time:
// what criu writes beside it gets its name once it is on disk, and before the processes are ended.
//
// After an error the job keeps running as before, unless the error wraps [hooks.ErrNotBack] or
// [hooks.ErrEnded]. [preflight.Refused] tells whether the job was touched. If ctx ends, the dump fails
// at the next point where everything can be undone.
func Dump(ctx context.Context, hook *hooks.Hook, dir string, options Options) (Result, error) {
	env := session.Of(hook)
	options.LeaveStopped = options.LeaveStopped || options.Hold != nil
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Result{}, preflight.AsRefusal(fmt.Errorf("image directory: %w", err))
	}
	refused := func(err error) (Result, error) {
		env.KeepRefusal(journal.Refusal{Kind: journal.KindDump, RootPID: int(options.RPC.GetPid()), ImageDir: dir}, err)
		return Result{}, preflight.AsRefusal(err)
	}
	if err := refuseDump(env, int(options.RPC.GetPid()), dir); err != nil {
		return refused(err)
	}
	if here, err := os.Stat("."); err == nil {
		if to, err := os.Stat(dir); err == nil && os.SameFile(here, to) {
			env.Log.Warn(`the image replaces the current directory: after the dump, enter it anew with cd "$PWD"`)
		}
	}
	made, err := imagedir.MakeParent(dir)
	defer func() { durable.RemoveDirs(made) }() // after a success they are not empty
	if err != nil {
		return refused(err)
	}
	if foreign := durable.CheckPath("parent directory", filepath.Dir(dir), 0); foreign != nil && os.Geteuid() == 0 {
		env.Log.Warn("others can remove or replace the image", "why", foreign)
	}
	partial, err := env.NewPartial(dir)
	if err != nil {
		return refused(err)
	}
	defer partial.Close()
	complete := false // whether there is an image
	needed := false   // whether the job has yet to be restored from partial
	defer func() {
		if !needed && !complete {
			_ = partial.Remove()
		}
	}()
	var locked time.Time // when the job came to a halt
	noting := *env
	noting.Progress = func(step hooks.Step) {
		if step.Name == StepLock && locked.IsZero() {
			locked = time.Now()
		}
		if env.Progress != nil {
			env.Progress(step)
		}
	}
	root, _ := proc.Open(int(options.RPC.GetPid())) // criu says what is wrong with the pid
	if root != nil {
		defer root.Close()
	}
	// What is found in one look is asked of the kernel module and of the tree at the same time.
	advice, adviceErr := inventory.Advice(int(options.RPC.GetPid()))
	var prefetched *inspect.Prefetched
	if adviceErr == nil { // else the inspection says why
		prefetched = env.Host().Prefetch(ctx, advice)
	}
	needs, record, removed, err := addNeeds(ctx, env, &options, advice, adviceErr)
	if err != nil {
		return refused(err)
	}
	names := relinkedFiles{log: env.Log, refuse: env.Refuse}
	relinks := !options.ByHand && !options.RPC.GetLinkRemap()
	if relinks {
		defer func() { names.settle(complete) }()
		if err := names.give(removed); err != nil {
			return refused(err)
		}
	}
	var unpublished error // why there is no image although criu has made one
	publish := func() (err error) {
		// Not earlier: where no process uses CUDA, the hook removes what it takes for an earlier
		// dump's.
		if record != nil {
			record.Monotonic, record.Boottime, err = proc.Clocks()
			err = errors.Join(err, record.Write(partial.Dir()))
		}
		if err == nil {
			err = partial.Publish(!options.NoChecksums)
		}
		if complete = err == nil; !complete {
			unpublished = fmt.Errorf("the image could not be put in place: %w", err)
		}
		return unpublished
	}
	d, err := start(&noting, journal.KindDump, options, partial.Dir())
	if err != nil {
		return refused(err)
	}
	defer d.close()
	d.stage.Prefetched, d.stage.Claim, d.stage.ImagePath = prefetched, partial.Claim, partial.Path()
	if relinks {
		d.stage.Stopped = func() error {
			removed, err := inventory.RemovedNamesNow(int(options.RPC.GetPid()))
			if err != nil {
				return err
			}
			return names.give(removed)
		}
	}
	leavesRunning := d.criu.LeaveRunning || d.criu.LeaveStopped
	if !leavesRunning {
		d.stage.PublishedDir = dir
		d.stage.Publish = func(context.Context) error { return publish() }
	}
	var trial *image.Trial
	if options.Probe {
		d.probe = func(ctx context.Context) error {
			if env.Progress != nil {
				env.Progress(hooks.Step{Name: StepTrial})
			}
			trial = options.try(ctx, env, partial.Dir(), record)
			if ctx.Err() != nil {
				return fmt.Errorf("%w: cancelled during the trial restore", context.Cause(ctx))
			}
			if trial.Outcome == image.TrialFails {
				return fmt.Errorf("the trial restore has shown that the image cannot be restored, so the job is not ended: %s", trial.Why)
			}
			return nil
		}
	}
	_, dumpErr := d.do(ctx)
	if dumpErr != nil && !d.staged && ctx.Err() == nil {
		_, dumpErr = refused(dumpErr)
	}
	ended := time.Now()
	s, err := watch.Finish(ctx, env, d.kind, proc.Ident(d.criu.Ident), d.cause)
	noteUnpublished(s, unpublished, d.cause)
	needed = s != nil && s.Outcome == "" || s == nil && err != nil // also while another program holds the job
	if s != nil && s.Outcome == journal.OutcomeRunning {
		ended = time.Now()
		if !s.Ended.IsZero() {
			ended = s.Ended
		}
	}
	if err := errors.Join(dumpErr, err); err != nil && (s == nil || s.Outcome != journal.OutcomeDumped) {
		if ended := session.CheckEnded(s, root); ended != nil && !errors.Is(err, hooks.ErrEnded) {
			err = errors.Join(err, ended)
		} else if ended == nil {
			err = d.withOutcome(err, session.OutcomeText(s, root))
		}
		return Result{Session: statusIf(s), Log: d.logPath()}, err
	}
	if leavesRunning {
		if err := publish(); err != nil {
			noteUnpublished(s, err, d.cause)
			if options.Hold != nil {
				backErr := Decide(context.WithoutCancel(ctx), hook, options.Hold.ID, RunHere)
				needed = backErr != nil
				err = errors.Join(err, backErr)
			}
			return Result{Session: statusIf(s), Log: d.logPath()}, errors.Join(err, session.CheckEnded(s, root))
		}
		if s != nil {
			s.Update(func() { s.PublishedDir = dir })
			if err := s.Save(); err != nil { // the image is complete all the same
				env.Log.Warn("the journal does not record where the image is", "session", s.Name(), "error", err)
			}
		}
	}
	if d.criu.LeaveStopped {
		if err := watch.AwaitStandstill(ctx, env, int(options.RPC.GetPid())); err != nil {
			return Result{Session: statusIf(s), Log: d.logPath()}, fmt.Errorf("the image in %s is complete, but the job is not stopped: %w", dir, err)
		}
	}
	for _, name := range []string{options.RPC.GetLogFile(), "stats-dump"} {
		if err := copyFile(filepath.Join(d.workDir, name), filepath.Join(partial.Dir(), name)); err != nil && options.WorkDir == "" {
			env.Log.Debug("criu's log is not beside the image", "error", err)
		}
	}
	r := d.result(s, int(options.RPC.GetPid()), dir)
	r.Needs, r.Trial = needs, trial
	if s != nil {
		for _, m := range s.Members {
			r.Unchanged += m.Unchanged
		}
	}
	if locked.IsZero() { // no process uses CUDA
		locked = d.seized
	}
	r.Downtime = ended.Sub(locked)
	return r, nil
}

// noteUnpublished has the journal say why there is no image, and not why criu failed because of that.
func noteUnpublished(s *journal.Session, why error, cause string) {
	if s == nil || why == nil || s.Outcome == "" {
		return
	}
	s.Update(func() {
		_, outcome, _ := strings.Cut(strings.TrimSuffix(s.Message, "; the cause: "+cause), "; ")
		s.Message = fmt.Sprintf("%v; %s", why, outcome)
	})
	_ = s.Save() // the job keeps running all the same
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}
