package stages

import (
	"context"
	"errors"
	"time"

	"cucriu/internal/image"
	"cucriu/internal/inject"
	"cucriu/internal/proc"
)

// describe makes the manifest, as soon as everything is copied. Only one thing is not known yet: which
// processes will be frozen instead of stopped.
func (d *dump) describe() (image.Manifest, error) {
	var version string
	if d.Driver != nil { // else no process uses CUDA
		var err error
		if version, err = d.Driver.DriverVersion(); err != nil {
			return image.Manifest{}, err
		}
	}
	root, err := proc.ReadStatus(d.Root)
	if err != nil {
		return image.Manifest{}, err
	}
	m := image.Manifest{Version: image.ManifestVersion, Created: time.Now().UTC(), DriverVersion: version, RootPID: root.ImagePID()}
	for _, t := range d.Targets {
		p := image.Process{PID: t.Member.ImagePID, Name: t.Member.Name, Stopped: t.Member.Stopped, GPUs: t.Member.GPUs, MemoryBytes: t.Member.MemoryBytes}
		if t.Member.Pages != nil {
			p.Pages = t.Member.Pages.Listing
		}
		m.Processes = append(m.Processes, p)
	}
	m.StoppedOthers = d.stoppedOthers
	if m.Scheduling, err = schedulingOf(d.Root); err != nil {
		d.Log.Warn("the threads will not be scheduled as they are: what they may have been given was not found out", "error", err)
	}
	if len(m.Scheduling) > 0 {
		m.Version = image.ScheduledVersion
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
	if d.Session.Written, err = image.NoteWritten(d.imageDir, d.lanes.outputs()); err != nil {
		return err
	}
	return d.Session.Save()
}

// parkedForImage returns what the manifest says of the parked threads.
func (d *dump) parkedForImage() ([]inject.Parked, error) {
	var all []inject.Parked
	add := func(parked *inject.Parked) error {
		if parked == nil {
			return nil
		}
		inImage, err := parked.ForImage()
		if errors.Is(err, proc.ErrGone) {
			return nil
		}
		all = append(all, inImage)
		return err
	}
	for _, t := range d.Targets {
		if err := add(t.Parked); err != nil {
			return nil, err
		}
	}
	for _, other := range d.Others {
		if err := add(d.ParkedOthers[other.PID]); err != nil {
			return nil, err
		}
	}
	return all, nil
}
