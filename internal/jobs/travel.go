package jobs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"cucriu/internal/durable"
)

// Description is what the directory of a job says of it.
type Description struct {
	Name     string
	Dir      string // as which its checkpoints can be restored
	Begun    time.Time
	Finished bool
	// Attached says that the job reads from its cucriu run, by --tty or by --stdin of an earlier version.
	Attached bool
}

// Describe reads what the directory of a job says of it. The error is [fs.ErrNotExist] if it is not
// the directory of a job.
func Describe(dir string) (Description, error) {
	return DescribeAs(filepath.Join(dir, recordName))
}

// DescribeAs is Describe for a record that has another name yet.
func DescribeAs(path string) (Description, error) {
	r, err := loadRecord(path)
	return Description{Name: r.Name, Dir: r.Dir, Begun: r.Begun, Finished: r.Finished != nil, Attached: r.Input != inputNone}, err
}

// TravelFiles are the files that a job takes along when it moves to another host, beside its
// checkpoints. The first is its record; the others may be missing.
func TravelFiles() []string { return []string{recordName, "output.log", eventsName, flagsName} }

// OwnFiles are all names that there may be in the directory of a job that has not run here.
func OwnFiles() []string {
	return append(TravelFiles(), "lock", "owner.json", "checkpoints", "staged", fenceName, undoName, moveLockName, moveName)
}

// NoteLocal notes in the run directory what a job does on this host that has no supervisor here.
func NoteLocal(runDir, dir string, state State) error {
	of, err := Describe(dir)
	if errors.Is(err, fs.ErrNotExist) {
		of, err = Description{Name: filepath.Base(dir)}, nil
	}
	if err != nil {
		return err
	}
	folder := localDir(runDir, dir)
	if l, err := readLocal(folder); err == nil && (l.alive || l.PID != 0) {
		return nil // it is under care, or to be found
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	return durable.WriteJSON(filepath.Join(folder, localName), Local{Name: of.Name, Dir: dir, State: state})
}

// EventsSize is how long the log of a job's events is.
func EventsSize(dir string) (int64, error) {
	info, err := os.Stat(filepath.Join(dir, eventsName))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Resumed reports whether the log of a job says, from an offset on, that the job was started,
// resumed or attached to.
func Resumed(dir string, from int64) (bool, error) {
	data, err := os.ReadFile(filepath.Join(dir, eventsName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	for line := range bytes.Lines(data[min(int(from), len(data)):]) {
		var e Event
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		if e.Event == EventStarted || e.Event == EventResumed || e.Event == EventAttached {
			return true, nil
		}
	}
	return false, nil
}

// Runs reports whether the job runs, or is paused, with a supervisor.
func (l Local) Runs() bool {
	return l.PID != 0 && (l.State == StateRunning || l.State == StateCheckpoint || l.State == StatePaused)
}
