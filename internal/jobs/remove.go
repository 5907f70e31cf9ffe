package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs/inside"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/fault"
)

// Removal says what to remove of a job, and what was removed.
type Removal struct {
	Job         string   `json:"job"`
	Dir         string   `json:"dir"`
	Checkpoints []string `json:"checkpoints"`
	// Left are the paths that are not the job's own, or were to be kept.
	Left []string `json:"left"`
}

// Remove removes a job that does not run: its checkpoints, its output and its records. With checkpoints,
// it must be agreed that they are lost. Files in its directory that are not its own stay.
func Remove(ctx context.Context, hook *hooks.Hook, job Local, agreed, keepOutput bool) (r Removal, err error) {
	refuse := func(err error) (Removal, error) {
		return r, preflight.AsRefusal(fmt.Errorf("%s (%s) is not removed: %w", job.Name, job.Dir, err))
	}
	if job.lost != nil {
		return r, preflight.AsRefusal(job.lost)
	}
	if job.PID != 0 {
		return r, preflight.AsRefusal(fault.New(job.Name+" is running", "end it first with cucriu jobs stop "+job.Name))
	}
	r = Removal{Job: job.Name, Dir: job.Dir, Checkpoints: []string{}, Left: []string{}}
	if _, err := loadRecord(filepath.Join(job.Dir, recordName)); err != nil {
		return refuse(err)
	}
	c := newCore(hook, Options{Dir: job.Dir, Messages: os.Stderr})
	l := &lease{core: c}
	defer l.release()
	if err := l.claim(ctx); err != nil { // it has a supervisor
		return refuse(err)
	}
	if l.runsOn && job.State == StateUntold {
		return refuse(fault.New("how it has ended is not known yet", untoldRemedy(job)))
	}
	if l.runsOn {
		return refuse(errors.New("it runs without a supervisor: end it first: the same cucriu run, then cucriu jobs stop"))
	}
	lock, err := TryLockMove(job.Dir)
	if err != nil {
		return refuse(err)
	}
	defer func() { _ = lock.Free() }()
	m, err := ReadMove(job.Dir)
	if err == nil && m.State != MoveNone && m.State != MoveArrived && (m.State != MoveLeft || !m.PeerKnows) {
		err = fmt.Errorf("its move from or to %s is not over: run cucriu recover", m.Peer)
		if m.State == MoveLeaving || m.State == MoveStays {
			err = fmt.Errorf("%w; or, if that host is gone permanently, cucriu recover --drop %s", err, m.ID)
		}
	}
	if err != nil {
		return refuse(err)
	}
	// Whoever had the job until now may have left more than was there before.
	if c.store, err = store.Open(job.Dir, store.OpenOptions{}); err != nil { // another host owns it
		return refuse(err)
	}
	if err = RequireGone(hook.Config.RunDir, job.Dir); err == nil {
		err = cmp.Or(c.mayLose(&r, agreed), refuseSeen(hook.Config.RunDir, job.Dir))
	}
	if err != nil {
		return refuse(errors.Join(err, c.store.Close()))
	}
	if err = UndoFiles(hook.Config.RunDir, job.Dir); err == nil {
		err = l.removeAll(ctx, &r, keepOutput)
	}
	if err != nil {
		return r, errors.Join(err, c.store.Close())
	}
	if from := c.record.Image; from != nil { // whoever owns the image may have removed it
		_ = store.ForgetStarted(from.Path, Key(job.Dir))
	}
	job.endMetrics(true)
	return r, os.RemoveAll(l.runDir)
}

// refuseSeen fails if another job, which runs here, sees something of its own at a directory, or below: what is mounted
// on a directory that somebody removes is unmounted everywhere, and that job would get no checkpoint any more. That job
// need not know the one of the directory: it may have come from another host.
func refuseSeen(runDir, dir string) error {
	all, err := Locals(runDir)
	for _, job := range all {
		r, readErr := loadRecord(filepath.Join(job.Dir, recordName))
		if !job.IsUp() || readErr != nil || r.Image == nil {
			continue
		}
		for _, seen := range append(r.Image.Private, r.Image.Dir) {
			if seen != "" && isBelow(seen, resolve(dir)) {
				return fault.New(fmt.Sprintf("%s, which runs, sees files of its own at %s", job.Name, seen),
					"end it first with cucriu jobs stop "+job.Name)
			}
		}
	}
	return err
}

// mayLose fails if something would be lost with the job, and it is not agreed that it is.
func (s *core) mayLose(r *Removal, agreed bool) error {
	all, err := s.store.Checkpoints()
	for _, c := range all {
		r.Checkpoints = append(r.Checkpoints, c.Name)
		if len(c.Jobs) > 0 {
			return fault.New(fmt.Sprintf("jobs were started from its checkpoint %s, and need it: %s",
				c.Name, strings.Join(c.Jobs, ", ")), "remove them first with cucriu jobs rm")
		}
	}
	switch {
	case err != nil || agreed:
		return err
	case len(all) > 0:
		return fmt.Errorf("its checkpoints (%s) would be lost: add --yes", strings.Join(r.Checkpoints, " "))
	}
	staged, err := s.store.LeftStages()
	for _, dir := range staged {
		images := filepath.Join(dir, imageName)
		if _, err := inside.ReadStaged(images); err == nil {
			return fmt.Errorf("the image that an earlier supervisor left in %s, which is not a checkpoint yet, would be lost: add --yes", images)
		}
	}
	return err
}

func (s *lease) removeAll(ctx context.Context, r *Removal, keepOutput bool) error {
	kept, err := Tails(s.Dir)
	if err != nil {
		return err
	}
	for _, k := range kept {
		r.Left = append(r.Left, k.Path)
	}
	if _, err := s.store.RemoveLeftovers(); err != nil { // staged elsewhere, too
		return err
	}
	left, err := s.store.RemoveAll(ctx)
	r.Left = append(r.Left, left...)
	if err == nil {
		err = removeSandboxes(s.Dir)
	}
	private := filepath.Join(s.Dir, privateDir) // of a job from an image
	if err == nil {
		err = errors.Join(os.RemoveAll(private+".partial"), removeCopiedImage(s.Dir))
	}
	if err == nil && !keepOutput { // which may be there
		err = os.RemoveAll(private)
	}
	// As long as the record is there, it can be removed again. What says where the job belongs goes after it, so
	// that no job of another host is started here, and the lock last.
	last := []string{recordName, "owner.json", moveName, moveLockName, "lock"}
	for _, name := range append(OwnFiles(), tailsName, SupervisorLog) {
		isKept := keepOutput && (name == OutputLog || name == privateDir)
		if slices.Contains(last, name) || slices.Contains(store.Dirs(), name) || isKept {
			continue
		}
		err = cmp.Or(err, removeFile(s.Dir, name))
	}
	for _, name := range last {
		err = cmp.Or(err, removeFile(s.Dir, name))
		if name == recordName {
			err = cmp.Or(err, durable.Sync(s.Dir))
		}
	}
	if err != nil {
		return err
	}
	if os.Remove(s.Dir) == nil {
		return nil
	}
	entries, err := os.ReadDir(s.Dir)
	for _, e := range entries {
		if path := filepath.Join(s.Dir, e.Name()); !slices.ContainsFunc(left, func(l string) bool { return l == path || filepath.Dir(l) == path }) {
			r.Left = append(r.Left, path)
		}
	}
	return err
}

// removeFile removes a file that may not exist.
func removeFile(dir, name string) error {
	err := os.Remove(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
