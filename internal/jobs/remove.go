package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/fault"
	"cucriu/internal/jobs/store"
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
	if l.runsOn {
		return refuse(errors.New("it runs without a supervisor: end it first: the same cucriu run, then cucriu jobs stop"))
	}
	lock, err := TryLockMove(job.Dir)
	if err != nil {
		return refuse(err)
	}
	defer lock.Free()
	m, err := ReadMove(job.Dir)
	if err == nil && m.State != MoveNone && m.State != MoveArrived && (m.State != MoveLeft || !m.PeerKnows) {
		err = fmt.Errorf("its move from or to %s is not over: run cucriu recover", m.Peer)
	}
	if err != nil {
		return refuse(err)
	}
	all, err := c.store.Checkpoints()
	for _, c := range all {
		r.Checkpoints = append(r.Checkpoints, c.Name)
	}
	if err == nil && len(all) > 0 && !agreed {
		err = fmt.Errorf("its checkpoints (%s) would be lost: add --yes", strings.Join(r.Checkpoints, " "))
	}
	if err != nil {
		return refuse(err)
	}
	if c.store, err = store.Open(job.Dir, store.OpenOptions{}); err != nil { // another host owns it
		return refuse(err)
	}
	if err = UndoFiles(hook.Config.RunDir, job.Dir); err == nil {
		err = l.removeAll(&r, keepOutput)
	}
	if err != nil {
		return r, errors.Join(err, c.store.Close())
	}
	job.endMetrics(true)
	return r, os.RemoveAll(l.runDir)
}

func (s *lease) removeAll(r *Removal, keepOutput bool) error {
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
	// As long as the record is there, it can be removed again; the lock goes last.
	own := slices.DeleteFunc(append(OwnFiles(), tailsName, SupervisorLog), func(name string) bool { return name == recordName || name == "lock" })
	if keepOutput {
		own = slices.DeleteFunc(own, func(name string) bool { return name == "output.log" })
	}
	err = removeSandboxes(s.Dir)
	for _, name := range append(own, recordName, "lock") {
		err = cmp.Or(err, os.RemoveAll(filepath.Join(s.Dir, name)))
	}
	if err != nil {
		return err
	}
	if os.Remove(s.Dir) == nil {
		return nil
	}
	entries, err := os.ReadDir(s.Dir)
	for _, e := range entries {
		r.Left = append(r.Left, filepath.Join(s.Dir, e.Name()))
	}
	return err
}
