package stages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"cucriu/hooks/preflight"
	"cucriu/internal/core/engine"
	"cucriu/internal/core/gpumap"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/core/watch"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/netlock"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/twice"
)

// preRestore makes every check that needs no process. An error makes criu give up before it creates
// anything.
func (c *call) preRestore(ctx context.Context) (err error) {
	defer func() { err = preflight.AsRefusal(err) }()
	if err := c.refuseKept(); err != nil {
		return err
	}
	img := imagedir.Open(c.stage.ImageDir)
	if err := c.checkImage(ctx, img); err != nil {
		return err
	}
	manifest, err := img.Manifest()
	if errors.Is(err, os.ErrNotExist) {
		c.Log.Info("the image contains no CUDA process")
		promised := func() []inspect.HostNeed { return c.PromisedMemory(nil, nil) }
		if err := c.requireMemory(ctx, c.hostNeed(nil), promised); err != nil {
			return err
		}
		return freeAddresses(ctx, c.Log, img)
	}
	if err == nil {
		err = manifest.MatchImages(c.stage.ImageDir)
	}
	if err != nil {
		return preflight.Findings{preflight.Found(preflight.FindingImage, err)}.Err()
	}
	go makeRoomForFiles(len(manifest.PageNames()))
	watch.RecoverFirst(ctx, c.Env)
	if err := c.refuseTakenPIDs(ctx, img); err != nil { // after what may just have ended a half-restored tree
		return err
	}
	if err := c.Refuse(inspect.AddressFindings(img, "")); err != nil {
		return err
	}
	host := c.Host()
	host.Promised = nil // of that below, when others see what this one needs
	plan, err := planRestore(ctx, c.Env, host, manifest)
	if err != nil {
		return err
	}
	inputs, err := manifest.OpenPages(c.stage.ImageDir)
	if err != nil {
		return preflight.Findings{preflight.Found(preflight.FindingImage, err)}.Err()
	}
	defer imagedir.ClosePages(inputs)
	var files []*os.File
	for _, input := range inputs {
		files = append(files, input.Files()...)
	}
	memory := c.hostNeed(&manifest)
	err = c.requireMemory(ctx, memory, func() []inspect.HostNeed { return nil }) // as for GPU memory
	if err != nil {
		return err
	}
	imageDir, err := c.stage.imagePath()
	if err == nil {
		err = freeAddresses(ctx, c.Log, img)
	}
	if err != nil {
		return err
	}
	mark, err := c.criu.Mark()
	if err != nil {
		c.Log.Debug("processes that criu creates cannot be identified by a mark", "error", err)
	}
	s, err := c.NewSession(journal.Record{
		Kind: journal.KindRestore, Criu: proc.Ident(c.criu.Ident), Mark: mark, CriuExe: watch.Executable(c.criu.PID),
		Client: c.stage.Client, ImageDir: imageDir, LeaveStopped: c.criu.LeaveStopped,
		RootParent: (*proc.Ident)(c.criu.RootParent), Manifest: &manifest, Hold: c.stage.Hold,
		Plan: plan, Map: c.Config.GPUs.Map, Unmapped: c.Config.GPUs.Unmapped, HostMemory: memory,
	}, c.stage.Action, c.begun)
	if err != nil {
		return err
	}
	defer s.Unlock()
	err = s.DoStep(journal.StepPreRestore, func() error { return s.StartWatcher(files...) })
	host.Promised = func() inspect.MemoryNeed { return c.Promised(s.Session, s.Hold) }
	if err == nil && len(host.Promised()) > 0 {
		_, err = planRestore(ctx, c.Env, host, manifest)
	}
	if err == nil {
		err = c.requireMemory(ctx, memory, func() []inspect.HostNeed { return c.PromisedMemory(s.Session, s.Hold) })
	}
	if err != nil {
		return errors.Join(err, s.Close(journal.OutcomeGone, "refused at pre-restore, nothing was created"))
	}
	s.Note() // criu's time is counted from here
	return nil
}

// checkImage compares an image with its checksums, if the configuration says so and the client does not. With
// --auto-dedup, criu empties the image while it restores: no later stage could.
func (c *call) checkImage(ctx context.Context, img *imagedir.Image) error {
	if !c.Config.Checksums || c.stage.Checked {
		return nil
	}
	err := img.CheckSums(ctx)
	if err != nil {
		name, _ := c.stage.imagePath() // criu's own ends with it
		err = fmt.Errorf("image %s: %w", cmp.Or(name, c.stage.ImageDir), err)
	}
	return err
}

// planRestore plans where the GPU state of an image goes, and refuses one that has no place on the host.
func planRestore(ctx context.Context, env *session.Env, host inspect.Host, m imagedir.Manifest) (gpumap.Pairs, error) {
	if len(m.Processes) == 0 {
		return nil, nil
	}
	driver, err := env.OpenDriver()
	if err != nil {
		return nil, err
	}
	var plan gpumap.Plan
	err = env.AwaitRoom(ctx, func() (err error) {
		plan, err = host.PlanRestore(ctx, driver, m)
		return err
	})
	for _, line := range plan.Explain() {
		env.Log.Info("GPU map: " + line)
	}
	if err != nil && ctx.Err() == nil {
		err = preflight.Findings{inspect.PlanFinding(err)}.Err()
	}
	return plan.Pairs(), err
}

// hostNeed is what the restore takes of the host's memory. With --lazy-pages that comes when it is asked for, and with
// --auto-dedup from an image in memory.
func (c *call) hostNeed(m *imagedir.Manifest) inspect.HostNeed {
	if c.criu.RPC || c.criu.LazyPages || c.criu.AutoDedup {
		return inspect.HostNeed{}
	}
	return inspect.NeedOf(c.stage.ImageDir, m, c.criu.PID)
}

// requireMemory refuses a restore for which the host has too little memory: the kernel would end it, or other jobs.
func (c *call) requireMemory(ctx context.Context, need inspect.HostNeed, promised func() []inspect.HostNeed) error {
	err := c.AwaitRoom(ctx, func() error { return need.Require(proc.System{}, c.criu.PID, promised()) })
	if err == nil || ctx.Err() != nil {
		return err
	}
	return c.Refuse(preflight.Findings{inspect.PlanFinding(err)})
}

// planAsSeen plans once more for processes that see other GPUs than this program: a container shows fewer. That is
// known once criu has created them. This is the last stage at which criu undoes a restore.
func (c *call) planAsSeen(ctx context.Context, s *session.Session) error {
	driver, err := c.OpenDriver()
	if err != nil {
		return err
	}
	_, members, err := findMembers(&s.Record)
	if err != nil {
		return err
	}
	host := c.Host()
	if host.Visible, err = engine.SeenByAll(driver, members); err != nil {
		return err
	}
	own, err := driver.OwnGPUs()
	if err != nil || slices.Equal(host.Visible, own) {
		return err
	}
	host.Map, host.Unmapped = s.Map, s.Unmapped
	host.Promised = func() inspect.MemoryNeed { return c.Promised(s.Session, s.Hold) }
	if s.Plan, err = planRestore(ctx, c.Env, host, *s.Manifest); err != nil {
		return err
	}
	return s.Save()
}

// freeAddresses frees the TCP addresses that criu is about to bind from connections that are over.
func freeAddresses(ctx context.Context, log *slog.Logger, img *imagedir.Image) error {
	sockets, err := img.Sockets()
	if err != nil {
		return nil // criu itself judges its images, which may be streamed
	}
	n, err := netlock.FreeAddresses(ctx, sockets.Bound, func(n int) {
		log.Warn("ports of the image have closed connections in TIME_WAIT, which this kernel does not let cucriu remove; retrying for up to 75s", "connections", n)
	})
	if n > 0 && err == nil {
		log.Info("ports of the image are free again: their closed connections (TIME_WAIT) were removed", "connections", n)
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		log.Debug("closed connections (TIME_WAIT) could not be listed", "error", err)
		return nil
	}
	return err
}

// refuseKept refuses a checkpoint in the directory of its long job, unless that job's supervisor restores it.
func (c *call) refuseKept() error {
	name, err := c.stage.imagePath()
	if err != nil {
		return err
	}
	return twice.RefuseKept(name, twice.Start{Supervised: c.stage.Supervised})
}

// refuseTakenPIDs refuses a restore that needs pids which are in use. criu would find that only when it
// creates the processes.
func (c *call) refuseTakenPIDs(ctx context.Context, img *imagedir.Image) error {
	tree, err := img.Tree()
	if err != nil {
		return nil // criu itself judges its images, which may be streamed
	}
	start := twice.Start{OwnPIDs: tree.OwnPIDs}
	findings, err := inspect.TakenPIDs(ctx, start, tree.Numbers(), func(text string) { c.Log.Warn(text) })
	if err != nil {
		return err
	}
	name, err := c.stage.imagePath()
	if err != nil {
		return err
	}
	self := os.Getpid() // as an action script we have ended by then
	return c.Refuse(c.ExplainTaken(name, slices.DeleteFunc(findings, func(f preflight.Finding) bool { return f.PID == self })))
}
