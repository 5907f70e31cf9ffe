package stages

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"cucriu/hooks/image"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/proc"
)

// postDump notes that criu has written a complete image, and gives it its name. An error makes criu
// leave the processes alive. [call.networkUnlock] says why postDump stops them.
func (c *call) postDump(ctx context.Context) error {
	s, err := c.openSession(journal.KindDump)
	if err != nil {
		return err
	}
	publish := c.stage.Publish
	if publish == nil {
		publish = func(ctx context.Context) error { return c.finishImage(ctx, s != nil) }
	}
	if s == nil { // no process of the tree uses CUDA
		if err := criuimage.Settle(c.stage.ImageDir); err != nil {
			return err
		}
		return publish(ctx)
	}
	defer s.Unlock()
	s.NoteCriu()
	if err := s.Failpoint(ctx, "dump.post-dump"); err != nil {
		return err
	}
	if err := requireAllMembers(s.Members); err != nil {
		return err
	}
	if err := criuimage.Settle(c.stage.ImageDir); err != nil {
		return err
	}
	if err := c.checkWhole(&s.Record); err != nil {
		return fmt.Errorf("the image is incomplete, so the job is not ended; dump again into a directory that nothing else modifies: %w", err)
	}
	if err := s.Timeline().Write(filepath.Join(c.stage.ImageDir, image.TimelineName)); err != nil {
		c.Log.Warn("the image has no timeline", "error", err)
	}
	if err := s.DoStep(journal.StepPublish, func() error { return publish(ctx) }); err != nil {
		return err
	}
	step := journal.StepDumped
	if s.LazyPages {
		step = journal.StepTransferring
	}
	return s.DoStep(step, func() error { return session.StopMembers(&s.Record) })
}

// finishImage waits until all that criu has written is on disk. criu does not wait for that, and it ends the
// job next: a disk that is full or fails would be noticed too late. An image that is not all here has no
// checksums.
func (c *call) finishImage(ctx context.Context, ofCUDA bool) error {
	sync := ofCUDA && !c.criu.LeaveRunning && c.Config.FastLane.Sync
	sums := c.Config.Checksums && !c.criu.PagesElsewhere && !c.stage.Checked
	if err := imagedir.Finish(ctx, c.stage.ImageDir, sync, sums); err != nil {
		return fmt.Errorf("the image is not on disk, so the job is not ended: %w", err)
	}
	return nil
}

// requireAllMembers fails if a process of the manifest has ended since. criu dumps what it finds, and
// if one process is missing from the image, the others cannot be restored from it.
func requireAllMembers(members []journal.Member) error {
	for _, member := range members {
		process, err := proc.Reopen(member.Ident)
		if err == nil {
			if process.Exiting() {
				err = proc.ErrGone
			}
			process.Close()
		}
		if err != nil {
			return fmt.Errorf("process %d (%s) ended during the dump, and the image could not be restored without it (the rest of the job keeps running): dump again: %w", member.PID, member.Name, err)
		}
	}
	return nil
}

func (c *call) checkWhole(r *journal.Record) error {
	if r.Written == nil {
		return nil // an earlier version began the dump
	}
	return r.Written.CheckWhole(c.stage.ImageDir, r.ImageDir, c.criu.RPC || c.criu.PagesElsewhere)
}

// networkUnlock stops the CUDA processes of a dump before criu lets go of them: those that it got
// through a v1 freezer would run checkpointed as soon as somebody thawed them. criu traces them now, so
// the signal waits.
func (c *call) networkUnlock(context.Context) error {
	s, err := c.openSession(journal.KindDump)
	if err != nil || s == nil {
		return err
	}
	defer s.Unlock()
	return session.StopMembers(&s.Record)
}

// describe makes the manifest, as soon as everything is copied. Only one thing is not known yet: which
// processes will be frozen instead of stopped.
func (d *dump) describe() (imagedir.Manifest, error) {
	var version string
	if d.Driver != nil { // else no process uses CUDA
		var err error
		if version, err = d.Driver.DriverVersion(); err != nil {
			return imagedir.Manifest{}, err
		}
	}
	root, err := proc.ReadStatus(d.Root)
	if err != nil {
		return imagedir.Manifest{}, err
	}
	m := imagedir.Manifest{Version: imagedir.ManifestVersion, Created: time.Now().UTC(), DriverVersion: version, RootPID: root.ImagePID()}
	for _, t := range d.Targets {
		p := imagedir.Process{PID: t.Member.ImagePID, Name: t.Member.Name, Stopped: t.Member.Stopped, GPUs: t.Member.GPUs, MemoryBytes: t.Member.MemoryBytes, Gated: t.Member.Gated, Out: t.Member.Out}
		if t.Member.Pages != nil {
			p.Pages = t.Member.Pages.Listing
		}
		if t.Member.Pages != nil && t.Member.Base != nil {
			m.Base = t.Member.Base.Dir
		}
		m.Processes = append(m.Processes, p)
	}
	m.StoppedOthers = d.stoppedOthers
	if m.Scheduling, err = schedulingOf(d.truth.PIDs); err != nil {
		d.Log.Warn("the scheduling of the threads could not be determined, and will not be restored", "error", err)
	}
	if len(m.Scheduling) > 0 {
		m.Version = imagedir.ScheduledVersion
	}
	if slices.ContainsFunc(m.Processes, func(p imagedir.Process) bool { return p.Gated }) {
		m.Version = imagedir.GatedVersion
	}
	if m.Base != "" {
		m.Version = imagedir.BasedVersion
	}
	if m.Settings, err = d.settings(); err != nil {
		d.Log.Warn("some settings of the processes and their sockets could not be determined, and will not be restored", "error", err)
	}
	if len(m.Settings) > 0 {
		m.Version = imagedir.SettingsVersion
	}
	m.Parked, err = d.parkedForImage()
	return m, err
}

// writeManifest tells the restore side what the image holds.
func (d *dump) writeManifest(context.Context) error {
	for i, t := range d.Targets {
		d.manifest.Processes[i].Running = t.Frozen
	}
	if err := d.manifest.Write(d.imageDir); err != nil {
		return err
	}
	if err := d.manifest.RemoveOtherPages(d.imageDir); err != nil {
		return err
	}
	var err error
	if d.Session.Written, err = imagedir.NoteWritten(d.imageDir, d.lanes.outputs()); err != nil {
		return err
	}
	return d.Session.Save()
}

// parkedForImage returns what the manifest says of the parked threads.
func (d *dump) parkedForImage() ([]inject.Parked, error) {
	var parked []*inject.Parked
	for _, t := range d.Targets {
		parked = append(parked, t.Parked)
	}
	for _, other := range d.Others {
		parked = append(parked, d.ParkedOthers[other.PID])
	}
	var all []inject.Parked
	for _, p := range parked {
		if p == nil {
			continue
		}
		inImage, err := p.ForImage()
		if err == nil {
			all = append(all, inImage)
		} else if !errors.Is(err, proc.ErrGone) {
			return nil, err
		}
	}
	return all, nil
}
