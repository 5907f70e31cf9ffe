package jobs

import (
	"errors"
	"io/fs"
	"slices"

	"cucriu/internal/kit/files"
	"cucriu/internal/kit/records"
)

// What is newer in the job's files than the checkpoint from which it resumes is kept beside them.
// Nobody but the user knows whether it is of use, so it is listed here, and removed on demand.

const tailsName = "tails.json" // in the directory of the job

// tails is the list of what was kept. What is there no more need not be taken from it.
type tails struct {
	Paths []string `json:"paths"`
}

var tailsKind = records.Kind[tails]{Name: tailsName, What: "list of the backups kept at resumes", Version: 1}

// tellChanges tells what was done to the job's files, and lists what was kept of them. A full disk does
// not stop it.
func (s *core) tellChanges(changes []files.Change) {
	var kept []string
	for _, change := range changes {
		if s.say(change.String()); change.Kept != "" {
			kept = append(kept, s.record.hostPath(change.Kept))
		}
	}
	if len(kept) == 0 {
		return
	}
	t, err := tailsKind.ReadOr(s.Dir, tails{})
	if err == nil {
		t.Paths = slices.DeleteFunc(t.Paths, func(path string) bool {
			_, err := files.FindKept(path)
			return errors.Is(err, fs.ErrNotExist) || slices.Contains(kept, path)
		})
		t.Paths = append(t.Paths, kept...)
		err = tailsKind.Write(s.Dir, t)
	}
	s.sayError(err)
}

// Tails returns what resumes have kept of the job's files and is still there.
func Tails(dir string) ([]files.Kept, error) {
	t, err := tailsKind.ReadOr(dir, tails{})
	if err != nil {
		return nil, err
	}
	var all []files.Kept
	for _, path := range t.Paths {
		kept, err := files.FindKept(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, kept)
	}
	return all, nil
}

// RemoveTails removes what resumes have kept of the job's files, and returns the paths.
func RemoveTails(dir string) (removed []string, err error) {
	all, err := Tails(dir)
	for _, kept := range all {
		if removeErr := files.RemoveKept(kept.Path); removeErr != nil {
			err = errors.Join(err, removeErr)
			continue
		}
		removed = append(removed, kept.Path)
	}
	return removed, err
}
