package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"cucriu/internal/criuimage"
	"cucriu/internal/durable"
	"cucriu/internal/image"
	"cucriu/internal/proc"
)

// Marks say something about a checkpoint that was not known when it was made. They lie in its
// directory, so that they go with it.
const (
	verifiedName = "verified.json"
	pinnedName   = "pinned"
	givenUpName  = "given-up.json"
	trialName    = "trial.json"
)

const maxMarkBytes = 16 << 10

// verified is what verifiedName holds.
type verified struct {
	At     time.Time `json:"at"`
	CRC32C uint32    `json:"crc32c"` // of the record of the checkpoint
}

func isVerified(root *os.Root, sum uint32) bool {
	f, _, err := criuimage.OpenIn(root, verifiedName)
	if err != nil {
		return false
	}
	defer f.Close()
	var v verified
	data, err := readAll(f, maxMarkBytes)
	return err == nil && json.Unmarshal(data, &v) == nil && v.CRC32C == sum && !v.At.IsZero()
}

// givenUp is what givenUpName holds.
type givenUp struct {
	At  time.Time `json:"at"`
	Why string    `json:"why"`
}

func givenUpFor(root *os.Root) string {
	f, _, err := criuimage.OpenIn(root, givenUpName)
	if err != nil {
		return ""
	}
	defer f.Close()
	var g givenUp
	data, err := readAll(f, maxMarkBytes)
	if err != nil || json.Unmarshal(data, &g) != nil || g.Why == "" {
		return "unknown"
	}
	return proc.Printable(g.Why)
}

// GiveUp says that the job has gone on from an older checkpoint, because this one did not restore.
// Its files have changed since: this one might not restore any more, or set the job back.
func (s *Store) GiveUp(name string, why error) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.mayChange(); err != nil {
		return err
	}
	if !checkpointName.MatchString(name) {
		return fmt.Errorf("job directory %s: %.40q is not the name of a checkpoint", s.dir, name)
	}
	text := proc.Printable(why.Error())
	mark := givenUp{At: time.Now().UTC(), Why: text[:min(len(text), maxText)]}
	if err := durable.WriteJSON(filepath.Join(s.checkpointDir(name), givenUpName), mark); err != nil {
		return fmt.Errorf("give up checkpoint %s: %w", name, err)
	}
	return nil
}

// trialOf returns the trial restore of a checkpoint; nil if there was none.
func trialOf(root *os.Root) *image.Trial {
	f, _, err := criuimage.OpenIn(root, trialName)
	if err != nil {
		return nil
	}
	defer f.Close()
	var t image.Trial
	data, err := readAll(f, maxMarkBytes)
	if err != nil || json.Unmarshal(data, &t) != nil {
		return nil
	}
	t.Outcome, t.Why = image.TrialOutcome(proc.Printable(string(t.Outcome))), proc.Printable(t.Why)
	return &t
}

// NoteTrial records how the trial restore of a checkpoint went.
func (s *Store) NoteTrial(name string, t image.Trial) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.mayChange(); err != nil {
		return err
	}
	if !checkpointName.MatchString(name) {
		return fmt.Errorf("job directory %s: %.40q is not the name of a checkpoint", s.dir, name)
	}
	t.Why = t.Why[:min(len(t.Why), maxText)]
	if err := durable.WriteJSON(filepath.Join(s.checkpointDir(name), trialName), t); err != nil {
		return fmt.Errorf("trial of checkpoint %s: %w", name, err)
	}
	return nil
}

func isPinned(root *os.Root) bool {
	_, err := root.Lstat(pinnedName)
	return err == nil
}

func (s *Store) markVerified(c Checkpoint) error {
	return durable.WriteJSON(filepath.Join(s.checkpointDir(c.Name), verifiedName), verified{At: time.Now().UTC(), CRC32C: c.sum})
}

func (s *Store) unmarkVerified(c Checkpoint) error {
	return removeMark(filepath.Join(s.checkpointDir(c.Name), verifiedName))
}

// Pin says that a checkpoint is never pruned, or that it may be again.
func (s *Store) Pin(name string, pinned bool) error {
	// No error in a view: a person pins while the supervisor has the lock.
	if err := s.Fenced(); err != nil {
		return err
	}
	if _, err := s.Checkpoint(name); err != nil {
		return err
	}
	path := filepath.Join(s.checkpointDir(name), pinnedName)
	var err error
	if pinned {
		err = putMark(path)
	} else {
		err = removeMark(path)
	}
	if err != nil {
		return fmt.Errorf("pin checkpoint %s: %w", name, err)
	}
	return nil
}

func putMark(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close(), durable.Sync(filepath.Dir(path)))
}

func removeMark(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, durable.Sync(filepath.Dir(path)))
}
