package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/records"
)

// Staging directories may be anywhere, for example in memory. Each has a record in D/staged
// before it exists, so that what a killed supervisor has left is found again.

const stagePrefix = "cucriu-stage-"

var stageName = regexp.MustCompile(`^` + stagePrefix + `[0-9]+$`)

var stageKind = records.Kind[stage]{What: "the record of a staging directory", Remedy: "remove it", Version: 1, Limit: 16 << 10}

// stage is the record of a staging directory.
type stage struct {
	Path    string `json:"path"`
	Host    string `json:"host"`
	Machine string `json:"machine,omitempty"`
	BootID  string `json:"boot_id"`
	// Of is the process below whose /proc/PID/root the path is; nil if it is an ordinary one.
	Of *proc.Ident `json:"of,omitempty"`
}

// isThere reports whether the path still leads to where it led: the pid in it may be another
// process's by now. One of another pid namespace says nothing here.
func (r stage) isThere(bootID string) bool {
	if r.Of == nil {
		return !strings.HasPrefix(r.Path, "/proc/")
	}
	if r.BootID != bootID {
		return false
	}
	p, err := proc.Reopen(*r.Of)
	return err == nil && p.Close() == nil
}

// StageDir makes an empty private directory for a dump on its way to the store: below base,
// or below the store's own directory if base is "". [Store.RemoveStage] removes it. If base is below
// the /proc/PID/root of a process, of is that process: the directory is taken for gone once it is.
func (s *Store) StageDir(base string, of *proc.Ident) (string, error) {
	s.stageMutex.Lock()
	defer s.stageMutex.Unlock()
	if err := s.mayChange(); err != nil {
		return "", err
	}
	base, err := filepath.Abs(cmp.Or(base, s.path(stagedDir)))
	var dir string
	if err == nil {
		dir, err = os.MkdirTemp(base, stagePrefix)
	}
	record := stage{Path: dir, Host: s.owner.Host, Machine: s.owner.Machine, BootID: s.owner.BootID, Of: of}
	if err == nil && base != s.path(stagedDir) {
		// Killed here, it leaves an empty directory.
		if err = stageKind.Write(s.stageRecord(dir), record); err != nil {
			err = errors.Join(err, os.Remove(dir))
		}
	}
	if err != nil {
		return "", fmt.Errorf("staging directory: %w", err)
	}
	s.staged[dir] = record
	return dir, nil
}

func (s *Store) stageRecord(dir string) string { return s.path(stagedDir, filepath.Base(dir)+".json") }

// RemoveStage removes a staging directory with all that is in it.
func (s *Store) RemoveStage(dir string) error {
	s.stageMutex.Lock()
	defer s.stageMutex.Unlock()
	record, is := s.staged[dir]
	if !is {
		return fmt.Errorf("%s is not a staging directory of this store", dir)
	}
	if record.isThere(s.owner.BootID) {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("staging directory: %w", err)
		}
	}
	if err := os.Remove(s.stageRecord(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("staging directory: %w", err)
	}
	delete(s.staged, dir)
	return nil
}

// LeaveStage leaves a staging directory to whoever looks for what earlier supervisors have left.
func (s *Store) LeaveStage(dir string) {
	s.stageMutex.Lock()
	defer s.stageMutex.Unlock()
	delete(s.staged, dir)
}

// RemovePartials removes checkpoints that killed supervisors were writing or removing, and returns
// their directories. Images that are staged stay.
func (s *Store) RemovePartials() (removed []string, err error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.mayChange(); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(s.path(CheckpointsDir))
	errs := []error{err}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), partialPrefix) {
			continue
		}
		path := s.checkpointDir(entry.Name())
		err := os.RemoveAll(path)
		if err == nil {
			removed = append(removed, path)
		}
		errs = append(errs, err)
	}
	return removed, inLeftovers(errs)
}

// RemoveLeftovers removes what killed supervisors have left: checkpoints that were being
// written or removed, and their staging directories on this host. It returns what it has
// removed. No dump into a staging directory of theirs may run any more.
func (s *Store) RemoveLeftovers() (removed []string, err error) {
	removed, partialErr := s.RemovePartials()
	s.stageMutex.Lock()
	defer s.stageMutex.Unlock()
	left, err := s.leftStages()
	if err != nil {
		return removed, err
	}
	errs := []error{partialErr}
	for entry, dir := range left {
		err := os.RemoveAll(cmp.Or(dir, entry))
		if err == nil {
			err = os.RemoveAll(entry)
		}
		if err == nil && dir != "" {
			removed = append(removed, dir)
		}
		errs = append(errs, err)
	}
	return removed, inLeftovers(errs)
}

func inLeftovers(errs []error) error {
	err := errors.Join(errs...)
	if err != nil {
		err = fmt.Errorf("leftovers: %w", err)
	}
	return err
}

// LeftStages returns the staging directories that killed supervisors have left on this host.
func (s *Store) LeftStages() (dirs []string, err error) {
	s.stageMutex.Lock()
	defer s.stageMutex.Unlock()
	left, err := s.leftStages()
	for _, dir := range left {
		if dir != "" {
			dirs = append(dirs, dir)
		}
	}
	return dirs, err
}

// leftStages returns which staging directory each leftover of D/staged is, or is the record of; ""
// if it is gone.
func (s *Store) leftStages() (map[string]string, error) {
	if err := s.mayChange(); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(s.path(stagedDir))
	if err != nil {
		return nil, fmt.Errorf("leftovers: %w", err)
	}
	left := make(map[string]string)
	for _, entry := range entries {
		if dir, is := s.leftStage(entry.Name()); is {
			left[s.path(stagedDir, entry.Name())] = dir
		}
	}
	return left, nil
}

// leftStage returns the staging directory that an entry of D/staged is, or is the record of; ""
// if it is gone. It returns false if that is not to be removed here.
func (s *Store) leftStage(name string) (dir string, is bool) {
	own := s.path(stagedDir, name)
	base, isRecord := strings.CutSuffix(name, ".json")
	_, ours := s.staged[own]
	switch {
	case !stageName.MatchString(base) || ours:
		return "", false
	case !isRecord:
		return own, true
	}
	record, err := stageKind.Read(own)
	if err == nil && (filepath.Base(record.Path) != base || !filepath.IsAbs(record.Path) || filepath.Clean(record.Path) != record.Path) {
		err = fmt.Errorf("it names %q", record.Path)
	}
	if err != nil {
		s.log.Warn("The record of a staging directory is damaged", "record", own, "error", err)
		return "", false
	}
	of := Owner{Host: record.Host, Machine: record.Machine, BootID: record.BootID}
	if _, ours := s.staged[record.Path]; ours || !of.onHostOf(s.owner) {
		return "", false
	}
	var stat unix.Stat_t
	switch err := unix.Lstat(record.Path, &stat); {
	case !record.isThere(s.owner.BootID) || errors.Is(err, unix.ENOENT):
		return "", true
	case err == nil && (stat.Uid != 0 || stat.Mode&unix.S_IFMT != unix.S_IFDIR):
		s.log.Warn("Ignoring a staging directory that is not a directory of root's", "path", record.Path, "record", own)
		return "", false
	}
	return record.Path, true
}
