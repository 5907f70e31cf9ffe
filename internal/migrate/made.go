package migrate

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/files"
	"cucriu/internal/kit/jsonlines"
	"cucriu/internal/kit/netlock"
)

// madeRecord is what the destination keeps of the files and directories that it makes for a job, and of the
// connections that it blocks, until it is decided whether the job stays here. Whoever makes them has it locked.
type madeRecord struct {
	path string
	file *os.File // nil as long as nothing is made
}

// madeLine is a line of a record: something that is made or, at last, that the source may let the
// job run here.
type madeLine struct {
	Made     *files.Made `json:"made,omitempty"`
	Promised bool        `json:"promised,omitempty"`
}

const madeSuffix = ".made"

// note notes what is about to be made.
func (r *madeRecord) note(m files.Made) error {
	if err := r.begin(); err != nil {
		return err
	}
	return r.write(madeLine{Made: &m})
}

// begin makes the record, if there is none. With it, connections may be blocked.
func (r *madeRecord) begin() error {
	if r.file != nil {
		return nil
	}
	if err := r.create(); err != nil {
		return fmt.Errorf("the record of what is made for the job: %w", err)
	}
	return nil
}

// create makes the record and locks it. There must be none.
func (r *madeRecord) create() error {
	if err := os.MkdirAll(filepath.Dir(r.path), 0o700); err != nil {
		return err
	}
	for {
		f, err := os.OpenFile(r.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_EX), unix.Fstat(int(f.Fd()), &st)); err != nil {
			return errors.Join(err, f.Close())
		}
		if st.Nlink > 0 {
			r.file = f
			return nil
		}
		f.Close() // somebody has removed it before it was locked
	}
}

// promise notes that the job may run here from now on.
func (r *madeRecord) promise() error {
	if r.file == nil {
		return nil
	}
	return r.write(madeLine{Promised: true})
}

func (r *madeRecord) write(line madeLine) error {
	return jsonlines.Write(r.file, line)
}

func (r *madeRecord) close() {
	if r.file != nil {
		r.file.Close()
	}
}

// removeMade removes what was made at this host for jobs that do not run here.
func removeMade(hook *hooks.Hook) error {
	paths, err := durable.Match(recordsDir(hook.Config.RunDir), "*"+madeSuffix)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var errs []error
	for _, path := range paths {
		if err := removeMadeOf(hook, path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove files that were made for a job (%s): %w", path, err))
		}
	}
	return errors.Join(errs...)
}

func removeMadeOf(hook *hooks.Hook, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return nil
	} else if err != nil {
		return err
	}
	made, promised, err := readMade(f)
	if err != nil {
		return err
	}
	id := strings.TrimSuffix(filepath.Base(path), madeSuffix)
	s, err := checkpoint.FindHeld(hook, id)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if promised { // it may have gone on here, and the journal has forgotten it
			made = nil
		}
	case err != nil:
		return err
	case s.Decision == checkpoint.RunHere:
		made = nil
	case s.Outcome == "":
		return nil // a copy is here
	case s.Outcome != checkpoint.OutcomeKilled && s.Outcome != checkpoint.OutcomeGone:
		made = nil // its processes are left for inspection
	}
	for _, m := range slices.Backward(made) {
		if err := files.Unmake(m); err != nil {
			hook.Log.Warn("files that were made for a job that does not run here could not be removed", "error", err)
		}
	}
	if err := netlock.Unblock(id); err != nil {
		return err
	}
	return os.Remove(path)
}

// readMade reads a record. Who was killed may have left a part of a line at its end: then what that
// tells of was not made.
func readMade(f *os.File) (made []files.Made, promised bool, err error) {
	for lines := jsonlines.NewReader(f, maxMadeLine); ; {
		var l madeLine
		err := lines.Read(&l)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return made, promised, nil
		}
		if err != nil {
			return nil, false, err
		}
		if l.Made != nil {
			made = append(made, *l.Made)
		}
		promised = promised || l.Promised
	}
}

const maxMadeLine = 1 << 16 // bytes: a path, its owner and mode
