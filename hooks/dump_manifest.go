package hooks

import (
	"context"
	"errors"
	"time"

	"cucriu/criuutil/inject"
	"cucriu/criuutil/proc"
	"cucriu/hooks/image"
)

// manifest tells the restore side what the image holds of CUDA.
func (d *dump) manifest(context.Context) error {
	version, err := d.driver.DriverVersion()
	if err != nil {
		return err
	}
	root, err := proc.ReadStatus(d.root)
	if err != nil {
		return err
	}
	m := image.Manifest{Version: image.ManifestVersion, Created: time.Now().UTC(), DriverVersion: version, RootPID: root.ImagePID()}
	for _, t := range d.targets {
		m.Processes = append(m.Processes, image.Process{
			PID: t.member.ImagePID, Name: t.member.Name, Stopped: t.member.Stopped, Running: t.frozen,
			GPUs: t.member.GPUs, MemoryBytes: t.member.MemoryBytes, Pages: t.member.DroppedPages(),
		})
	}
	m.StoppedOthers = d.stoppedOthers
	if m.Parked, err = d.parkedForImage(); err != nil {
		return err
	}
	if err := m.Write(d.imageDir); err != nil {
		return err
	}
	if err := m.RemoveOtherPages(d.imageDir); err != nil {
		return err
	}
	if d.session.Written, err = image.NoteWritten(d.imageDir, d.outputs()); err != nil {
		return err
	}
	return d.session.Save()
}

// parkedForImage is what the manifest says of the parked threads.
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
