package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/durable"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/proc"
)

// A supervisor that is killed may leave a complete image in a staging directory, which may be all
// that there is of the job's last interval. The next one makes a checkpoint of it.

// stagedName is the file in an image that says what only its maker knows.
const stagedName = "cucriu-job.json"

// imageName is the image directory in a staging directory.
const imageName = "image"

// staged describes an image that is not yet a checkpoint.
type staged struct {
	// BootID is that of the host. What was not synced before a reboot may be anything.
	BootID string         `json:"boot_id"`
	Begun  time.Time      `json:"begun"`
	Reason string         `json:"reason"`
	Root   int            `json:"root"` // pid of the job's root process, where the job runs
	Clocks sandbox.Clocks `json:"clocks"`
	// Terminal is criu's name for the job's terminal; empty if it had none.
	Terminal string `json:"terminal,omitempty"`
}

func (s *supervisor) newStaged(begun time.Time, reason string) (staged, error) {
	boot, err := proc.BootID()
	return staged{BootID: boot, Begun: begun.UTC(), Reason: reason, Root: s.sandbox.Root()}, err
}

func (of staged) write(dir string) error {
	return durable.WriteJSON(filepath.Join(dir, stagedName), of)
}

func readStaged(images string) (of staged, err error) {
	data, err := os.ReadFile(filepath.Join(images, stagedName))
	if err == nil {
		err = json.Unmarshal(data, &of)
	}
	return of, err
}

// saveStaged makes checkpoints of the complete images that an earlier supervisor has left, and returns
// the staging directories of those. It fails if that may go better another time.
func (s *supervisor) saveStaged(ctx context.Context) (saved []string, err error) {
	dirs, err := s.store.LeftStages()
	if err != nil {
		return nil, fmt.Errorf("what an earlier supervisor has left cannot be looked at: %w", err)
	}
	found := make(map[string]staged)
	for _, dir := range dirs {
		images := filepath.Join(dir, imageName)
		of, err := readStaged(images)
		if err == nil {
			found[images] = of
		} else if !errors.Is(err, fs.ErrNotExist) {
			s.say(fmt.Sprintf("%s is no image: %v", images, err))
		}
	}
	for _, images := range slices.SortedFunc(maps.Keys(found), func(a, b string) int { return found[a].Begun.Compare(found[b].Begun) }) {
		if err := s.save(ctx, images, found[images]); err != nil {
			err = fmt.Errorf("the image that an earlier supervisor has left in %s does not become a checkpoint: %w", images, err)
			if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EIO) || ctx.Err() != nil {
				return saved, err
			}
			s.tell(Event{Event: EventFailed, Message: err.Error()})
			continue
		}
		saved = append(saved, filepath.Dir(images))
	}
	return saved, nil
}

// save makes a checkpoint of an image, unless it is one already.
func (s *supervisor) save(ctx context.Context, images string, of staged) error {
	boot, err := proc.BootID()
	if err != nil {
		return err
	}
	// One in the job's directory is on the disk, complete: it had got its name.
	if of.BootID != boot && !strings.HasPrefix(images, s.Dir+"/") {
		return errors.New("the host was booted since, and it may not be whole")
	}
	all, err := s.store.Checkpoints()
	if err != nil {
		return err
	}
	for _, c := range all {
		if !of.Begun.After(c.CreatedAt) {
			return nil
		}
	}
	info, err := s.describe(images, of)
	if err != nil {
		return err
	}
	c, err := s.store.Publish(ctx, images, info, nil)
	if err == nil {
		s.tell(Event{Event: EventCheckpoint, Checkpoint: c.Name, Bytes: c.Bytes, NewBytes: c.New, Message: fmt.Sprintf("checkpoint %s is what an earlier supervisor had staged", c.Name)})
	}
	return err
}
