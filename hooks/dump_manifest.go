package hooks

import (
	"context"
	"errors"
	"time"

	"cucriu/internal/image"
	"cucriu/internal/inject"
	"cucriu/internal/proc"
)

// describe makes the manifest, which says what the image is going to hold of CUDA. It can
// be made as soon as everything is copied, before anything is dropped. Only one thing is
// not known yet: which processes will be frozen instead of stopped.
func (d *dump) describe() (image.Manifest, error) {
	var version string
	if d.driver != nil { // else no process uses CUDA
		var err error
		if version, err = d.driver.DriverVersion(); err != nil {
			return image.Manifest{}, err
		}
	}
	root, err := proc.ReadStatus(d.root)
	if err != nil {
		return image.Manifest{}, err
	}
	m := image.Manifest{Version: image.ManifestVersion, Created: time.Now().UTC(), DriverVersion: version, RootPID: root.ImagePID()}
	for _, t := range d.targets {
		p := image.Process{PID: t.member.ImagePID, Name: t.member.Name, Stopped: t.member.Stopped, GPUs: t.member.GPUs, MemoryBytes: t.member.MemoryBytes}
		if t.member.Pages != nil {
			p.Pages = t.member.Pages.Listing
		}
		m.Processes = append(m.Processes, p)
	}
	m.StoppedOthers = d.stoppedOthers
	if m.Scheduling, err = schedulingOf(d.root); err != nil {
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
	for i, t := range d.targets {
		d.manifest.Processes[i].Running = t.frozen
	}
	if err := d.manifest.Write(d.imageDir); err != nil {
		return err
	}
	if err := d.manifest.RemoveOtherPages(d.imageDir); err != nil {
		return err
	}
	var err error
	if d.session.Written, err = image.NoteWritten(d.imageDir, d.lanes.outputs()); err != nil {
		return err
	}
	return d.session.Save()
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
	for _, t := range d.targets {
		if err := add(t.parked); err != nil {
			return nil, err
		}
	}
	for _, other := range d.others {
		if err := add(d.parkedOthers[other.PID]); err != nil {
			return nil, err
		}
	}
	return all, nil
}
