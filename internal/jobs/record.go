package jobs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cucriu/internal/durable"
)

const recordName = "job.json" // in the directory of the job

// record is what the directory of a job says of it, beside its checkpoints.
type record struct {
	Version int       `json:"version"`
	Name    string    `json:"name"`
	Dir     string    `json:"dir"` // of the job; criu knows its output by that name
	Command []string  `json:"command"`
	WorkDir string    `json:"work_dir"`
	Begun   time.Time `json:"begun"`
	Input   input     `json:"input,omitempty"`
	// Adopted says that the job was not started by us.
	Adopted  bool      `json:"adopted,omitempty"`
	Finished *finished `json:"finished,omitempty"` // nil if the job has not come to its end
}

// finished says how a job has come to its end by itself.
type finished struct {
	Status int       `json:"status"`
	At     time.Time `json:"at"`
}

const recordVersion = 1

// openRecord reads the record of a job, or makes one for a job that is new.
func openRecord(o Options) (record, error) {
	r, change, err := readRecord(o)
	if err == nil && change {
		err = r.write(o.Dir)
	}
	return r, err
}

// loadRecord reads the record of a job. The error is [fs.ErrNotExist] if there is none.
func loadRecord(path string) (r record, err error) {
	err = durable.ReadJSON(path, &r)
	if err == nil && (r.Version != recordVersion || len(r.Command) == 0) {
		err = fmt.Errorf("it is of version %d, and this cucriu reads version %d", r.Version, recordVersion)
	}
	if err != nil {
		return record{}, fmt.Errorf("the job's record %s: %w", path, err)
	}
	return r, nil
}

// readRecord reads the record of a job, or makes one for a job that is new, and reports whether it is
// to be written.
func readRecord(o Options) (r record, change bool, err error) {
	path := filepath.Join(o.Dir, recordName)
	if r, err = loadRecord(path); errors.Is(err, fs.ErrNotExist) {
		r, err = newRecord(o)
		return r, true, err
	} else if err != nil {
		return record{}, false, err
	}
	if len(o.Command) > 0 && !slices.Equal(o.Command, r.Command) {
		return record{}, false, fmt.Errorf("%s is the directory of another job: %s: name another --dir, or leave out the command to go on with that job", o.Dir, strings.Join(r.Command, " "))
	}
	if r.Dir != "" && !isSame(r.Dir, o.Dir) {
		return record{}, false, fmt.Errorf("%s was moved or copied: the job's checkpoints can be restored as %s: move it back, or mount it there (mount --bind)", o.Dir, r.Dir)
	}
	if err := r.Input.check(o); err != nil {
		return record{}, false, err
	}
	if o.Adopt != 0 && !r.Adopted {
		return record{}, false, fmt.Errorf("%s is the directory of another job, which was started there: %s: name another --dir", o.Dir, strings.Join(r.Command, " "))
	}
	if change = o.Name != "" && o.Name != r.Name; change {
		r.Name = o.Name
	}
	return r, change, nil
}

func newRecord(o Options) (record, error) {
	if o.Adopt != 0 {
		return adoptedRecord(o)
	}
	if len(o.Command) == 0 {
		return record{}, fmt.Errorf("%s is not yet the directory of a job: name the command to run", o.Dir)
	}
	work, err := os.Getwd()
	if err != nil {
		return record{}, err
	}
	r := record{Version: recordVersion, Name: o.Name, Dir: o.Dir, Command: o.Command, WorkDir: work, Begun: time.Now().UTC(), Input: o.input()}
	if r.Name == "" {
		r.Name = filepath.Base(o.Dir)
	}
	return r, nil
}

// isSame reports whether two paths lead to one directory.
func isSame(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

func (r record) write(dir string) error {
	return durable.WriteJSON(filepath.Join(dir, recordName), r)
}

// remove forgets a job that has never run: its command may be corrected.
func (r record) remove(dir string) error { return os.Remove(filepath.Join(dir, recordName)) }
