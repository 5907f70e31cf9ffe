package migrate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/records"
)

// record is what the source of a process tree keeps of a migration until the destination knows what
// was decided. The decision itself is in the hold of the hooks' session, on which the watcher acts. A
// long job has both in its directory: see [jobs.Move].
type record struct {
	ID      string    `json:"id"`
	Host    string    `json:"host"`
	RSH     []string  `json:"rsh"`
	Remote  string    `json:"remote"`
	Stage   string    `json:"stage"` // where the directory of the image is
	RootPID int       `json:"root_pid"`
	Name    string    `json:"name"` // of the root
	Begun   time.Time `json:"begun"`
	// MoveAddress is [Options.MoveAddress].
	MoveAddress []string `json:"move_address,omitempty"`

	path string
	lock *flock.Flock
}

var recordKind = records.Kind[record]{
	What: "the record of a migration", Remedy: "restore it from a backup; or, if the job runs on one of the two hosts, remove it", Version: 1,
	Check: func(r *record) error {
		if len(r.RSH) == 0 {
			return errors.New("it names no remote shell")
		}
		return nil
	},
}

func recordsDir(runDir string) string { return filepath.Join(runDir, "migrations") }

// create writes the record and locks it: as long as this program lives, nobody else settles the
// migration.
func (r *record) create(runDir string) error {
	if err := os.MkdirAll(recordsDir(runDir), 0o700); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	r.path = filepath.Join(recordsDir(runDir), r.ID+".json")
	if locked, err := r.tryLock(); err != nil || !locked {
		return errors.Join(errors.New("the record of the migration cannot be locked"), err)
	}
	if err := recordKind.Write(r.path, *r); err != nil {
		return errors.Join(err, r.remove())
	}
	return nil
}

// remove removes the record: both sides know what was decided. The lock goes first: who finds the
// record without it has nothing to do but to ask again.
func (r *record) remove() error {
	_ = os.Remove(r.lockPath())
	if err := os.Remove(r.path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (r *record) lockPath() string { return strings.TrimSuffix(r.path, ".json") + ".lock" }

// tryLock locks the record. It reports false if the program that migrates is at work.
func (r *record) tryLock() (bool, error) {
	r.lock = flock.New(r.lockPath())
	return r.lock.TryLock()
}

func (r *record) unlock() {
	if r.lock != nil {
		_ = r.lock.Close()
	}
}

// pendingRecords lists the migrations of this host whose destination does not know yet what was decided,
// and those that are under way.
func pendingRecords(runDir string) ([]*record, error) {
	paths, err := durable.Match(recordsDir(runDir), "*.json")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var all []*record
	var errs []error // a damaged one does not hide the others
	for _, path := range paths {
		r, err := recordKind.Read(path)
		if r.path = path; err == nil {
			all = append(all, &r)
		} else if !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	slices.SortFunc(all, func(a, b *record) int { return a.Begun.Compare(b.Begun) })
	return all, errors.Join(errs...)
}
