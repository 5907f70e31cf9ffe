package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/records"
	"cucriu/internal/kit/rundir"
)

// List returns all sessions of the run directory, the oldest first. It leaves out one that is just being
// made, and a damaged one, which must not hide the others. It fails if the system does not let it read
// one: for want of descriptors, say.
func List(runDir string) ([]*Session, error) {
	sessions, _, err := list(runDir)
	return sessions, err
}

// list also returns the error of an open session that a newer cucriu has written: its processes are
// not known here.
func list(runDir string) (sessions []*Session, newer, err error) {
	dirs, err := Dirs(filepath.Join(runDir, rundir.Sessions))
	if err != nil {
		return nil, nil, err
	}
	sessions = []*Session{} // not nil, which would be null in JSON and not a list
	listed.Lock()
	defer listed.Unlock()
	before, now := listed.of[runDir], make(map[string]closedRecord)
	defer func() { listed.of[runDir] = now }()
	for _, dir := range dirs {
		s, err := before[dir].read(dir, now)
		switch {
		case err == nil:
			sessions = append(sessions, s)
		case errors.Is(err, records.ErrNewer) && s.Outcome == "":
			newer = err
		case errors.As(err, new(unix.Errno)) && !errors.Is(err, os.ErrNotExist):
			return nil, nil, err
		}
	}
	slices.SortFunc(sessions, func(a, b *Session) int { return a.Created.Compare(b.Created) })
	return sessions, newer, nil
}

// listed are records of closed sessions, by run directory and by the session's, since a dump lists them some
// ten times.
var listed = struct {
	sync.Mutex
	of map[string]map[string]closedRecord
}{of: make(map[string]map[string]closedRecord)}

type closedRecord struct {
	file   os.FileInfo
	record Record
}

// read reads a session, unless its file is the one that was read before, and notes what may be used again.
func (c closedRecord) read(dir string, now map[string]closedRecord) (*Session, error) {
	file, statErr := os.Lstat(recordKind.Path(dir))
	if statErr == nil && c.file != nil && os.SameFile(file, c.file) && file.ModTime().Equal(c.file.ModTime()) && file.Size() == c.file.Size() {
		now[dir] = c
		return &Session{Record: cloneOf(reflect.ValueOf(c.record)).Interface().(Record), dir: dir}, nil
	}
	s, err := Read(dir)
	if statErr == nil && err == nil && s.Outcome != "" && s.Hold == nil {
		now[dir] = closedRecord{file, cloneOf(reflect.ValueOf(s.Record)).Interface().(Record)}
	}
	return s, err
}

// cloneOf copies a value with all that it leads to: who gets a record may change it. What is not exported is
// shared, which are parts of times.
func cloneOf(v reflect.Value) reflect.Value {
	clone := reflect.New(v.Type()).Elem()
	clone.Set(v)
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				clone.Field(i).Set(cloneOf(v.Field(i)))
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			clone.Set(reflect.New(v.Type().Elem()))
			clone.Elem().Set(cloneOf(v.Elem()))
		}
	case reflect.Slice:
		if !v.IsNil() {
			clone.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
			for i := range v.Len() {
				clone.Index(i).Set(cloneOf(v.Index(i)))
			}
		}
	case reflect.Map:
		if !v.IsNil() {
			clone.Set(reflect.MakeMapWithSize(v.Type(), v.Len()))
			for _, key := range v.MapKeys() {
				clone.SetMapIndex(key, cloneOf(v.MapIndex(key)))
			}
		}
	}
	return clone
}

// Dirs returns the directories of all sessions. sessions is the directory that [rundir.MakeSessions] returns.
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
	return findOpen(all, runDir, criu, members)
}

func findOpen(all []*Session, runDir string, criu proc.Ident, members []Member) (*Session, error) {
	for _, s := range all {
		if s.Outcome == "" && (s.Criu == criu || s.Shares(members)) {
			return s, nil
		}
	}
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
			isOwn := func(m Member) bool { return m.Own != nil && slices.ContainsFunc(own, m.Own.IsOwn) }
			if slices.ContainsFunc(s.Members, isOwn) {
				return s, nil
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
	return filepath.Dir(s.dir) == filepath.Join(runDir, rundir.Sessions)
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

// DumpsInto lists those sessions that dump into a directory.
func DumpsInto(all []*Session, dir os.FileInfo) (into []*Session) {
	for _, s := range all {
		if s.Kind != KindDump {
			continue
		}
		if info, err := os.Stat(s.ImageDir); err == nil && os.SameFile(info, dir) {
			into = append(into, s)
		}
	}
	return into
}

// Shares reports whether any of the given processes is in the session, with CUDA or without: it holds both.
func (s *Session) Shares(members []Member) bool {
	held := append(IdentsOf(s.Members), s.Others...)
	return slices.ContainsFunc(members, func(m Member) bool { return slices.Contains(held, m.Ident) })
}

// tidy removes the oldest closed sessions, and those that were killed before they had a journal. The
// caller holds the lock under which sessions are made.
func tidy(runDir string, all []*Session) error {
	dirs, err := Dirs(filepath.Join(runDir, rundir.Sessions))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if _, err := os.Lstat(recordKind.Path(dir)); errors.Is(err, os.ErrNotExist) {
			_ = os.RemoveAll(dir) // failure is harmless: see below
		}
	}
	var plain, holds []*Session
	for _, s := range all {
		switch {
		case s.Outcome == "", s.Hold != nil && s.Hold.Decision == EndHere && s.Kind == KindDump && !s.Hold.PeerKnows:
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

// outer returns the run directory of the host of a sandbox's run directory, "" for any other.
func outer(runDir string) string {
	folder := filepath.Dir(runDir)
	if filepath.Base(runDir) != rundir.Inner || filepath.Base(filepath.Dir(folder)) != rundir.Jobs {
		return ""
	}
	return filepath.Dir(filepath.Dir(folder))
}

// lockPath names the lock under which sessions begin, in whichever of the related run directories.
func lockPath(runDir string) string {
	if host := outer(runDir); host != "" {
		runDir = host
	}
	return filepath.Join(runDir, "lock")
}

// related lists the other run directories that may have sessions of the same processes.
func related(runDir string) []string {
	var dirs []string
	jobs, _ := os.ReadDir(filepath.Join(runDir, rundir.Jobs)) // there may be none
	for _, job := range jobs {
		dir := filepath.Join(runDir, rundir.Jobs, job.Name(), rundir.Inner)
		if _, err := os.Lstat(dir); err == nil {
			dirs = append(dirs, dir)
		}
	}
	if host := outer(runDir); host != "" {
		dirs = append(dirs, host)
	}
	return dirs
}

// Path returns the directory of a criu's session.
func Path(runDir string, kind Kind, criu proc.Ident) string {
	return filepath.Join(runDir, rundir.Sessions, fmt.Sprintf("%s-%d-%d", kind, criu.PID, criu.StartTime))
}
