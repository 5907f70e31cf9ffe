package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"cucriu/internal/proc"
)

// List returns all sessions of the run directory, the oldest first. It leaves out what cannot be read:
// one that is just being made, or a damaged one, which must not hide the others.
func List(runDir string) ([]*Session, error) {
	dirs, err := Dirs(filepath.Join(runDir, sessionsName))
	if err != nil {
		return nil, err
	}
	sessions := []*Session{} // not nil, which would be null in JSON and not a list
	for _, dir := range dirs {
		s := &Session{dir: dir}
		if err := s.readRecord(); err == nil {
			sessions = append(sessions, s)
		}
	}
	slices.SortFunc(sessions, func(a, b *Session) int { return a.Created.Compare(b.Created) })
	return sessions, nil
}

// Dirs returns the directories of all sessions. sessions is the directory that [MakeSessionsDir] returns.
func Dirs(sessions string) ([]string, error) {
	entries, err := os.ReadDir(sessions)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("sessions: %w", err)
	}
	var dirs []string
	for _, entry := range entries {
		if entry.IsDir() {
			dirs = append(dirs, filepath.Join(sessions, entry.Name()))
		}
	}
	return dirs, nil
}

// FindOpen finds an open session of the given criu or of any of the given processes. It also looks into
// the run directories of this host's sandboxes or, in a sandbox, into that of the host.
func FindOpen(runDir string, criu proc.Ident, members []Member) (*Session, error) {
	all, err := List(runDir)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		if s.Outcome != "" {
			continue
		}
		if s.Criu == criu {
			return s, nil
		}
		for _, member := range s.Members {
			if slices.ContainsFunc(members, func(m Member) bool { return m.Ident == member.Ident }) {
				return s, nil
			}
		}
	}
	return findRelated(runDir, members)
}

// findRelated finds an open session of any of the given processes in related run directories.
func findRelated(runDir string, members []Member) (*Session, error) {
	var own []proc.Ident
	for _, dir := range related(runDir) {
		all, err := List(dir)
		if err != nil {
			return nil, err
		}
		for _, s := range all {
			if s.Outcome != "" {
				continue
			}
			if own == nil {
				own = ownOf(members)
			}
			for _, member := range s.Members {
				if member.Own != nil && slices.ContainsFunc(own, member.Own.IsOwn) {
					return s, nil
				}
			}
		}
	}
	return nil, nil
}

// ownOf identifies processes for sessions of other run directories. Those that have ended are left out.
func ownOf(members []Member) []proc.Ident {
	own := []proc.Ident{}
	for _, m := range members {
		if id, err := m.Ident.Own(); err == nil {
			own = append(own, id)
		}
	}
	return own
}

// In reports whether the session is in this run directory.
func (s *Session) In(runDir string) bool {
	return filepath.Dir(s.dir) == filepath.Join(runDir, sessionsName)
}

// FindHold finds the session that holds processes under a name. It is [os.ErrNotExist] if there is
// none.
func FindHold(runDir, id string) (*Session, error) {
	all, err := List(runDir)
	if err != nil {
		return nil, err
	}
	for _, s := range slices.Backward(all) {
		if s.Hold != nil && s.Hold.ID == id {
			return s, nil
		}
	}
	return nil, fmt.Errorf("migration %s: no session of it in %s: %w", id, runDir, os.ErrNotExist)
}

// DumpsInto lists the sessions that dump into a directory.
func DumpsInto(runDir string, dir os.FileInfo) ([]*Session, error) {
	all, err := List(runDir)
	if err != nil {
		return nil, err
	}
	var into []*Session
	for _, s := range all {
		if s.Kind != KindDump {
			continue
		}
		if info, err := os.Stat(s.ImageDir); err == nil && os.SameFile(info, dir) {
			into = append(into, s)
		}
	}
	return into, nil
}

// Shares reports whether any of the given processes is in the session.
func (s *Session) Shares(members []Member) bool {
	for _, member := range s.Members {
		for _, other := range members {
			if member.Ident == other.Ident {
				return true
			}
		}
	}
	return false
}

// tidy removes the oldest closed sessions, and those that were killed before they had a journal. The
// caller holds the lock under which sessions are made.
func tidy(runDir string) error {
	dirs, err := Dirs(filepath.Join(runDir, sessionsName))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if _, err := os.Lstat(filepath.Join(dir, recordFile)); !errors.Is(err, os.ErrNotExist) {
			continue
		}
		_ = os.RemoveAll(dir) // failure is harmless: see below
	}
	all, err := List(runDir)
	if err != nil {
		return err
	}
	var plain, holds []*Session
	for _, s := range all {
		switch {
		case s.Outcome == "", s.Hold != nil && s.Hold.Decision == DecisionEnd && s.Kind == KindDump && !s.Hold.Told:
			// The destination of a migration must yet be told that its copy is the job.
		case s.Hold != nil: // the other side may ask once more
			holds = append(holds, s)
		default:
			plain = append(plain, s)
		}
	}
	for _, s := range slices.Concat(plain[:max(0, len(plain)-keepSessions)], holds[:max(0, len(holds)-keepSessions)]) {
		// A process that looks for orphaned jobs may be taking the lock of this session, and create the
		// lock file again. Then the directory stays until the next session begins: one record too many
		// is no reason to refuse a job.
		_ = os.RemoveAll(s.dir)
	}
	return nil
}

// refuseNewer fails if a newer cucriu has an open session, whose processes are not known here.
func refuseNewer(runDir string) error {
	dirs, err := Dirs(filepath.Join(runDir, sessionsName))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if s, err := Read(dir); errors.Is(err, ErrNewer) && s.Outcome == "" {
			return err
		}
	}
	return nil
}
