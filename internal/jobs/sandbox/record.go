package sandbox

import (
	"errors"
	"io/fs"
	"path/filepath"

	"cucriu/internal/durable"
	"cucriu/internal/proc"
)

// Record is what is known of a sandbox by whoever attaches to it.
type Record struct {
	BootID string     `json:"boot_id"`
	First  proc.Ident `json:"init"`    // see [Sandbox.Init]
	Root   int        `json:"root"`    // pid of the job's root process inside
	RunDir string     `json:"run_dir"` // of the hook inside
	// Running says that the job has run in the sandbox: it was started there, or its restore is
	// over. What has ended before was no job.
	Running bool `json:"running"`
	// Leaving says that a dump is to end the job. What has killed it then was no fault of it.
	Leaving bool `json:"leaving,omitempty"`
	// Adopted is the root process of a job that was not started in a sandbox: see [Adopt].
	Adopted *proc.Ident `json:"adopted,omitempty"`
}

// Exit tells how the job's root process has ended; nil if it has not.
func (p *Sandbox) Exit() (*Exit, error) { return readExit(p.Dir) }

// LastExit tells how the root process in a sandbox that may be gone has ended; nil if that is not
// known, or if it was to leave.
func LastExit(dir string) (*Exit, error) {
	var r Record
	err := durable.ReadJSON(filepath.Join(dir, recordName), &r)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if r.Leaving {
		return nil, nil
	}
	return readExit(dir)
}

// SetRunning records that the job runs.
func (p *Sandbox) SetRunning() error {
	if p.Running {
		return nil
	}
	p.Running = true
	return p.save()
}

// SetLeaving records that a dump is to end the job.
func (p *Sandbox) SetLeaving() error {
	p.Leaving = true
	return p.save()
}

func (p *Sandbox) save() error { return durable.WriteJSON(filepath.Join(p.Dir, recordName), p.Record) }
