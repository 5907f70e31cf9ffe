package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/image"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/records"
	"cucriu/internal/kit/twice"
)

// Marks say something about a checkpoint that was not known when it was made. They are files in its
// directory, so that they go with it.
const (
	verifiedName = "verified.json"
	pinnedName   = "pinned"
	givenUpName  = "given-up.json"
	trialName    = "trial.json"
	damagedName  = "damaged.json"
)

// startedPrefix begins the names of the marks of jobs that were started from a checkpoint: one for each.
const startedPrefix = "started-"

const maxMarkBytes = 16 << 10

var (
	verifiedKind = records.Kind[verified]{Name: verifiedName, Version: 1, Limit: maxMarkBytes}
	givenUpKind  = records.Kind[givenUp]{Name: givenUpName, Version: 1, Limit: maxMarkBytes}
	damagedKind  = records.Kind[Damage]{Name: damagedName, Version: 1, Limit: maxMarkBytes}
	trialKind    = records.Kind[image.Trial]{Name: trialName, Version: 1, Limit: maxMarkBytes}
	pinnedKind   = records.Kind[time.Time]{Name: pinnedName}
)

// startedKind is the mark of one job, by the key of its directory.
func startedKind(key string) records.Kind[started] {
	return records.Kind[started]{Name: startedPrefix + key + ".json", Version: 1, Limit: maxMarkBytes}
}

// started says which job was started from a checkpoint, and needs it until it has one of its own, and again if it has lost
// that.
type started struct {
	At   time.Time `json:"at"`
	Dir  string    `json:"dir"`
	Host string    `json:"host"` // where that directory is
}

// isThere reports whether the job may be there: of another host nobody here can tell.
func (j started) isThere() bool {
	if host, err := os.Hostname(); err != nil || host != j.Host {
		return true
	}
	_, err := os.Lstat(filepath.Join(j.Dir, twice.RecordName))
	return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR)
}

// verified is what verifiedName holds.
type verified struct {
	At     time.Time `json:"at"`
	CRC32C uint32    `json:"crc32c"` // of the record of the checkpoint
}

// givenUp is what givenUpName holds.
type givenUp struct {
	At  time.Time `json:"at"`
	Why string    `json:"why"`
}

// Damage is what damagedName holds: how a checkpoint was found when it was read last.
type Damage struct {
	At     time.Time `json:"at"`
	Why    string    `json:"why"`
	CRC32C uint32    `json:"crc32c"` // of the record of the checkpoint
}

// readMarks reads the marks in the directory of a checkpoint.
func (c *Checkpoint) readMarks(root *os.Root) {
	_, err := root.Lstat(pinnedName)
	c.Pinned = err == nil
	c.readJobs(root)
	v, _, err := readKind(root, verifiedKind)
	c.Verified = err == nil && v.CRC32C == c.sum && !v.At.IsZero()
	if g, _, err := readKind(root, givenUpKind); err == nil && g.Why != "" {
		c.GivenUp = proc.Printable(g.Why)
	} else if !errors.Is(err, fs.ErrNotExist) {
		c.GivenUp = "unknown"
	}
	if d, _, err := readKind(root, damagedKind); err == nil && d.CRC32C == c.sum && d.Why != "" {
		d.Why = proc.Printable(d.Why)
		c.Damage = &d
	}
	if t, _, err := readKind(root, trialKind); err == nil {
		t.Outcome, t.Why = image.TrialOutcome(proc.Printable(string(t.Outcome))), proc.Printable(t.Why)
		c.Trial = &t
	}
}

// readJobs reads the marks of jobs that were started from the checkpoint.
func (c *Checkpoint) readJobs(root *os.Root) {
	entries, _ := fs.ReadDir(root.FS(), ".")
	for _, entry := range entries {
		key, isMark := strings.CutPrefix(entry.Name(), startedPrefix)
		key, isJSON := strings.CutSuffix(key, ".json")
		if !isMark || !isJSON {
			continue
		}
		if j, _, err := readKind(root, startedKind(key)); err != nil {
			c.Jobs = append(c.Jobs, entry.Name())
		} else if j.isThere() {
			c.Jobs = append(c.Jobs, proc.Printable(j.Dir))
		}
	}
}

// NoteStarted records in a checkpoint, wherever it lies, that the job of a directory is started from it.
func NoteStarted(checkpoint, key, job string) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	return startedKind(key).Write(checkpoint, started{At: time.Now().UTC(), Dir: job, Host: host})
}

// ForgetStarted takes that back.
func ForgetStarted(checkpoint, key string) error { return startedKind(key).Remove(checkpoint) }

// mark writes a mark of a checkpoint.
func mark[T any](s *Store, checkpoint string, kind records.Kind[T], value T) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := errors.Join(s.checkName(checkpoint), s.mayChange()); err != nil {
		return err
	}
	if err := kind.Write(s.checkpointDir(checkpoint), value); err != nil {
		return fmt.Errorf("checkpoint %s: %w", checkpoint, err)
	}
	return nil
}

// GiveUp records that the job has resumed from an older checkpoint, because this one did not restore.
// Its files have changed since: this one might not restore any more, or set the job back.
func (s *Store) GiveUp(name string, why error) error {
	text := proc.Printable(why.Error())
	return mark(s, name, givenUpKind, givenUp{At: time.Now().UTC(), Why: text[:min(len(text), maxText)]})
}

// NoteDamage records what [Store.Check] has found: the checkpoint is damaged until [Store.Verify] finds
// it complete. A checkpoint whose record is damaged needs no mark.
func (s *Store) NoteDamage(c Checkpoint, damage *DamageError) error {
	if c.Err != nil {
		return nil
	}
	text := damage.Error()
	dir := s.checkpointDir(c.Name)
	return errors.Join(verifiedKind.Remove(dir), damagedKind.Write(dir, Damage{At: time.Now().UTC(), Why: text[:min(len(text), maxText)], CRC32C: c.sum}))
}

// NoteTrial records how the trial restore of a checkpoint went.
func (s *Store) NoteTrial(name string, t image.Trial) error {
	t.Why = t.Why[:min(len(t.Why), maxText)]
	return mark(s, name, trialKind, t)
}

// Pin says that a checkpoint is never pruned, or that it may be again.
func (s *Store) Pin(name string, pinned bool) error {
	// No error in a view: a person pins while the supervisor has the lock.
	if err := s.Fenced(); err != nil {
		return err
	}
	c, err := s.Checkpoint(name)
	switch {
	case err != nil:
		return err
	case pinned && !c.Pinned:
		err = pinnedKind.Write(c.Dir, time.Now().UTC())
	case !pinned && len(c.Jobs) > 0:
		err = fault.New("jobs were started from it, and need it: "+strings.Join(c.Jobs, ", "),
			"remove them first with cucriu jobs rm")
	case !pinned:
		err = pinnedKind.Remove(c.Dir)
	}
	if err != nil {
		return fmt.Errorf("pin checkpoint %s: %w", name, err)
	}
	return nil
}
