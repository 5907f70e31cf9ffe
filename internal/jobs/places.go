package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"cucriu/internal/jobs/place"
	"cucriu/internal/journal"
)

const placePrefix = "place-" // of the folders in the job's directory

func (s *supervisor) placeDirs() ([]string, error) { return entries(s.Dir, placePrefix) }

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

// newPlace makes a place, and removes what is left of earlier ones. The records are in the job's
// directory: whoever runs the job next finds the place there, whatever run directory it has.
func (s *supervisor) newPlace(ctx context.Context, spec place.Spec) error {
	if s.wantsMemoryStage() {
		spec.Memory = s.memoryStage()
		if err := os.MkdirAll(spec.Memory, 0o700); err != nil {
			return err
		}
	}
	spec.HostDir, spec.Fence, spec.PrivateTmp = s.runDir, s.fence, s.PrivateTmp
	return s.makePlace(func(dir, runDir string) (err error) {
		s.place, err = place.New(ctx, dir, runDir, spec)
		return err
	})
}

// makePlace has a place made that keeps its records in dir.
func (s *supervisor) makePlace(how func(dir, runDir string) error) error {
	if err := s.store.Fenced(); err != nil {
		return err
	}
	if err := s.removePlaces(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(s.Dir, placePrefix)
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
	s.notePlace()
	return nil
}

// removePlaces removes what is left of places that are gone.
func (s *supervisor) removePlaces() error {
	dirs, err := s.placeDirs()
	for _, dir := range dirs {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// findPlace attaches to the place of the job. If that is gone, it tells how the job had ended in
// it, as far as that is known.
func (s *supervisor) findPlace() (*place.Place, *place.Exit, error) {
	dirs, err := s.placeDirs()
	if err != nil {
		return nil, nil, err
	}
	var exit *place.Exit
	gone := place.ErrGone
	for _, dir := range dirs {
		p, err := place.Attach(dir)
		switch {
		case errors.Is(err, place.ErrElsewhere) && s.Takeover: // it ends when the fence is raised
			gone = errors.Join(place.ErrGone, err)
		case errors.Is(err, place.ErrElsewhere):
			return nil, nil, fmt.Errorf("%w: run this command there, or say --takeover, and what the job has done since its last checkpoint is lost", err)
		case !errors.Is(err, place.ErrGone):
			return p, nil, err
		}
		if exit, err = place.LastExit(dir); err != nil {
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
	if s.place != nil {
		s.runsOn = s.place.Alive()
		s.place.Close()
	}
	s.place, s.root = nil, nil
}

// endPlace ends the place, and what is left of the job in it. How the job has ended is forgotten
// then.
func (s *supervisor) endPlace() error {
	err := s.place.Kill()
	dir := s.place.Dir()
	s.letGo()
	if err != nil {
		return err
	}
	s.board.note(func(l *Local) { l.Init = nil })
	return os.RemoveAll(dir) // others may be a new owner's
}
