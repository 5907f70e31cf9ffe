package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/pages"
)

// Policy says which checkpoints are kept.
type Policy struct {
	Keep     int   // so many that can be used and are not pinned; 0 is all
	MaxBytes int64 // on disk, of all together; 0 is no limit
	// DryRun removes nothing: it only says what would be removed, and works in a view as well.
	DryRun bool
}

// Prune removes the oldest checkpoints, as far as the policy demands. It removes only what is
// older than a checkpoint that has been verified, and none that is pinned. It returns what it
// has removed.
func (s *Store) Prune(ctx context.Context, policy Policy) ([]Checkpoint, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.mayChange(); err != nil && !policy.DryRun {
		return nil, err
	}
	all, err := s.Checkpoints()
	if err != nil {
		return nil, err
	}
	var removed []Checkpoint
	for i, candidate := range all {
		newer := all[i+1:]
		if !slices.ContainsFunc(newer, func(c Checkpoint) bool { return c.Usable() && c.Verified }) {
			break
		}
		if candidate.stays() {
			continue
		}
		kept := 0
		for _, c := range newer {
			if c.Usable() && !c.stays() {
				kept++
			}
		}
		tooMany := policy.Keep > 0 && kept >= policy.Keep
		if !tooMany && policy.MaxBytes > 0 {
			bytes, err := s.diskBytes(removed)
			if err != nil {
				return removed, err
			}
			tooMany = bytes > policy.MaxBytes
		}
		if tooMany && !policy.DryRun {
			err = s.remove(ctx, candidate.Name)
		}
		switch {
		case !tooMany, errors.Is(err, errPinned):
			continue
		case err != nil:
			return removed, err
		}
		removed = append(removed, candidate)
	}
	return removed, nil
}

// Unverified returns the checkpoints among all that Keep would have removed, and the newest one that can be used, if
// they stay only until that is verified.
func (p Policy) Unverified(all []Checkpoint) (stay []string, until string) {
	all = slices.DeleteFunc(slices.Clone(all), func(c Checkpoint) bool { return !c.Usable() || c.stays() })
	if p.Keep <= 0 || len(all) <= p.Keep || all[len(all)-1].Verified {
		return nil, ""
	}
	for _, c := range all[:len(all)-p.Keep] {
		stay = append(stay, c.Name)
	}
	return stay, all[len(all)-1].Name
}

// Usable reports whether the checkpoint is neither damaged nor given up, as far as is known.
func (c Checkpoint) Usable() bool { return !c.Damaged() && c.GivenUp == "" }

// Damaged reports whether the checkpoint was found damaged.
func (c Checkpoint) Damaged() bool { return c.Err != nil || c.Damage != nil }

// DiskBytes returns how much room all checkpoints take on the disk. What they share counts
// once.
func (s *Store) DiskBytes() (int64, error) { return s.diskBytes(nil) }

func (s *Store) diskBytes(without []Checkpoint) (int64, error) {
	names, err := s.names()
	if err != nil {
		return 0, err
	}
	for _, c := range without {
		names = slices.DeleteFunc(names, func(name string) bool { return name == c.Name })
	}
	var total int64
	seen := make(map[pages.FileID]bool)
	for _, name := range names {
		err := filepath.WalkDir(s.checkpointDir(name), func(_ string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := entry.Info()
			if err != nil {
				return err
			}
			id := pages.Identify(info)
			if !seen[id] {
				seen[id] = true
				total += info.Sys().(*syscall.Stat_t).Blocks * 512
			}
			return nil
		})
		if err != nil {
			return 0, fmt.Errorf("checkpoint %s: %w", name, err)
		}
	}
	return total, nil
}

// stays reports whether the checkpoint is never pruned.
func (c Checkpoint) stays() bool { return c.Pinned || len(c.Jobs) > 0 }

var errPinned = errors.New("it is pinned")

// remove takes the name of a checkpoint away, and then removes what is in it: a checkpoint
// that is half removed is none. One that is pinned stays.
func (s *Store) remove(ctx context.Context, name string) error {
	if err := s.mayChange(); err != nil {
		return err
	}
	dir, aside := s.checkpointDir(name), s.checkpointDir(partialPrefix+name)
	err := s.setAside(ctx, name, aside)
	// A person may have pinned it just now, through a view, or started a job from it.
	if err == nil {
		if now, readErr := readIn(aside, name); readErr == nil && now.stays() {
			err = errors.Join(errPinned, os.Rename(aside, dir))
		}
	}
	if err == nil {
		err = os.RemoveAll(aside)
	}
	if err != nil {
		return fmt.Errorf("remove checkpoint %s: %w", name, err)
	}
	return nil
}

// setAside takes the name of a checkpoint away, on disk. What is under the new name is a leftover.
func (s *Store) setAside(ctx context.Context, name, aside string) error {
	if err := os.Rename(s.checkpointDir(name), aside); err != nil {
		return err
	}
	return errors.Join(s.step(ctx, stepSetAside), durable.Sync(s.path(CheckpointsDir)))
}

// Dirs are the names of the directories in a job's that are the store's.
func Dirs() []string { return []string{CheckpointsDir, stagedDir} }

// RemoveAll removes all checkpoints, pinned or not, the oldest first, and the store's directories. It returns
// the paths of what is there and not the store's own, which stays.
func (s *Store) RemoveAll(ctx context.Context) (left []string, err error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.mayChange(); err != nil {
		return nil, err
	}
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		aside := s.checkpointDir(partialPrefix + name)
		err := s.setAside(ctx, name, aside)
		if err == nil {
			err = os.RemoveAll(aside)
		}
		if err != nil {
			return nil, fmt.Errorf("remove checkpoint %s: %w", name, err)
		}
	}
	for _, dir := range Dirs() {
		entries, err := os.ReadDir(s.path(dir))
		for _, entry := range entries {
			path := s.path(dir, entry.Name())
			if base, isRecord := strings.CutSuffix(entry.Name(), ".json"); dir != stagedDir || !isRecord || !stageName.MatchString(base) {
				left = append(left, path)
			} else if err := os.Remove(path); err != nil { // of another host's
				return left, err
			}
		}
		if err == nil && len(left) == 0 || err == nil && filepath.Dir(left[len(left)-1]) != s.path(dir) {
			err = os.Remove(s.path(dir))
		}
		switch {
		case errors.Is(err, unix.EBUSY): // a mount point
			left = append(left, s.path(dir))
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return left, err
		}
	}
	return left, nil
}
