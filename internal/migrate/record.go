package migrate

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"cucriu/internal/durable"
)

// Record is what the source keeps of a migration until the destination knows what was decided.
// The decision itself is in the hold of the hooks' session.
type Record struct {
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

func recordsDir(runDir string) string { return filepath.Join(runDir, "migrations") }

// create writes the record and locks it: as long as this program lives, nobody else settles the
// migration.
func (r *Record) create(runDir string) error {
	dir := recordsDir(runDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	r.path = filepath.Join(dir, r.ID+".json")
	r.lock = flock.New(filepath.Join(dir, r.ID+".lock"))
	if locked, err := r.lock.TryLock(); err != nil || !locked {
		return errors.Join(errors.New("the record of the migration cannot be locked"), err)
	}
	if err := durable.WriteJSON(r.path, r); err != nil {
		return errors.Join(err, r.remove())
	}
	return nil
}

// remove removes the record: both sides know what was decided.
func (r *Record) remove() error {
	err := os.Remove(r.path)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	_ = os.Remove(strings.TrimSuffix(r.path, ".json") + ".lock")
	return err
}

func (r *Record) letGo() { _ = r.lock.Close() }

// Records lists the migrations of this host whose destination does not know yet what was decided,
// and those that are under way.
func Records(runDir string) ([]*Record, error) {
	paths, err := filepath.Glob(filepath.Join(recordsDir(runDir), "*.json"))
	if err != nil {
		return nil, err
	}
	all := []*Record{}
	var errs []error // a damaged one does not hide the others
	for _, path := range paths {
		data, err := os.ReadFile(path)
		r := &Record{path: path}
		if err == nil {
			err = json.Unmarshal(data, r)
		}
		if err == nil {
			err = checkID(r.ID)
		}
		if err == nil && len(r.RSH) == 0 {
			err = errors.New("it names no remote shell")
		}
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("the record %s of a migration: %w", path, err))
			continue
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *Record) int { return a.Begun.Compare(b.Begun) })
	return all, errors.Join(errs...)
}

// take locks the record. It reports false if the program that migrates is at work.
func (r *Record) take() (bool, error) {
	r.lock = flock.New(strings.TrimSuffix(r.path, ".json") + ".lock")
	return r.lock.TryLock()
}
