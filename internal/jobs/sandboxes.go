package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/journal"
)

const sandboxPrefix = "place-" // of the folders in the job's directory

func (s *supervisor) sandboxDirs() ([]string, error) { return entries(s.Dir, sandboxPrefix) }

// entries lists what is in a directory and has a prefix. A directory that cannot be read is an error,
// and not empty.
func entries(dir, prefix string) (paths []string, err error) {
	all, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, entry := range all {
		if strings.HasPrefix(entry.Name(), prefix) {
			paths = append(paths, filepath.Join(dir, entry.Name()))
		}
	}
	return paths, err
}

// newSandbox makes a sandbox, and removes what is left of earlier ones. The records are in the job's
// directory: whoever runs the job next finds the sandbox there, whatever run directory it has.
func (s *supervisor) newSandbox(ctx context.Context, spec sandbox.Spec) error {
	if s.wantsMemoryStage() {
		spec.Memory = s.memoryStage()
		if err := os.MkdirAll(spec.Memory, 0o700); err != nil {
			return err
		}
	}
	spec.HostDir, spec.Fence, spec.PrivateTmp = s.runDir, s.fence, s.PrivateTmp
	return s.makeSandbox(func(dir, runDir string) (err error) {
		s.sandbox, err = sandbox.New(ctx, dir, runDir, spec)
		return err
	})
}

// makeSandbox has a sandbox made that keeps its records in dir.
func (s *supervisor) makeSandbox(how func(dir, runDir string) error) error {
	if err := s.store.Fenced(); err != nil {
		return err
	}
	if err := s.removeSandboxes(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(s.Dir, sandboxPrefix)
	if err != nil {
		return err
	}
	runDir := filepath.Join(s.runDir, journal.InnerName)
	if err := os.RemoveAll(runDir); err != nil {
		return err
	}
	if err := os.Mkdir(runDir, 0o700); err != nil {
		return err
	}
	if err := how(dir, runDir); err != nil {
		return err
	}
	s.noteSandbox()
	return nil
}

// removeSandboxes removes what is left of sandboxes that are gone.
func (s *supervisor) removeSandboxes() error {
	dirs, err := s.sandboxDirs()
	for _, dir := range dirs {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// findSandbox attaches to the sandbox of the job. If that is gone, it tells how the job had ended in
// it, as far as that is known.
func (s *supervisor) findSandbox() (*sandbox.Sandbox, *sandbox.Exit, error) {
	dirs, err := s.sandboxDirs()
	if err != nil {
		return nil, nil, err
	}
	var exit *sandbox.Exit
	gone := sandbox.ErrGone
	for _, dir := range dirs {
		p, err := sandbox.Attach(dir)
		switch {
		case errors.Is(err, sandbox.ErrElsewhere) && s.Takeover: // it ends when the fence is raised
			gone = errors.Join(sandbox.ErrGone, err)
		case errors.Is(err, sandbox.ErrElsewhere):
			return nil, nil, fmt.Errorf("%w: run this command there, or say --takeover, and what the job has done since its last checkpoint is lost", err)
		case !errors.Is(err, sandbox.ErrGone):
			return p, nil, err
		}
		if exit, err = sandbox.LastExit(dir); err != nil {
			return nil, nil, err
		}
	}
	return nil, exit, gone
}

// letGo closes what the supervisor holds of the job, and notes whether the job runs on.
func (s *supervisor) letGo() {
	if s.root != nil {
		s.root.Close()
	}
	if s.sandbox != nil {
		s.runsOn = s.sandbox.Alive()
		s.sandbox.Close()
	}
	s.sandbox, s.root = nil, nil
}

// endSandbox ends the sandbox, and what is left of the job in it. How the job has ended is forgotten
// then.
func (s *supervisor) endSandbox() error {
	err := s.sandbox.Kill()
	dir := s.sandbox.Dir()
	s.letGo()
	if err != nil {
		return err
	}
	s.board.note(func(l *Local) { l.Init = nil })
	return os.RemoveAll(dir) // others may be a new owner's
}
