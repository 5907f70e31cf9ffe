package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"cucriu/internal/criuimage"
)

// Checkpoints returns all checkpoints, the oldest first. One that cannot be used has its Err
// set.
func (s *Store) Checkpoints() ([]Checkpoint, error) {
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	var all []Checkpoint
	for _, name := range names {
		c, err := s.read(name)
		if errors.Is(err, errGone) {
			continue // removed meanwhile
		}
		if err != nil {
			c = Checkpoint{Name: name, Dir: s.checkpointDir(name), Err: fmt.Errorf("checkpoint %s: %w", name, err)}
		}
		all = append(all, c)
	}
	return all, nil
}

// Checkpoint returns the checkpoint with a name.
func (s *Store) Checkpoint(name string) (Checkpoint, error) {
	if !checkpointName.MatchString(name) {
		return Checkpoint{}, fmt.Errorf("job directory %s: %.40q is not the name of a checkpoint", s.dir, name)
	}
	c, err := s.read(name)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("checkpoint %s: %w", name, err)
	}
	return c, nil
}

// names returns the names of all checkpoints, the oldest first.
func (s *Store) names() ([]string, error) {
	entries, err := os.ReadDir(s.path(checkpointsDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoints: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if checkpointName.MatchString(entry.Name()) {
			names = append(names, entry.Name())
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(number(a), number(b)) })
	return names, nil
}

// number returns the number of a checkpoint, or 0.
func number(name string) uint64 {
	n, _ := strconv.ParseUint(name, 10, 64)
	return n
}

// nextName returns a name that no checkpoint has, and none that is being written or removed.
func (s *Store) nextName() (string, error) {
	entries, err := os.ReadDir(s.path(checkpointsDir))
	if err != nil {
		return "", err
	}
	var last uint64
	for _, entry := range entries {
		last = max(last, number(strings.TrimPrefix(entry.Name(), partialPrefix)))
	}
	return nameOf(last + 1), nil
}

var errGone = errors.New("there is no such checkpoint")

// read reads the record of a checkpoint, and looks at its files.
func (s *Store) read(name string) (Checkpoint, error) {
	dir := s.checkpointDir(name)
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return Checkpoint{}, errGone
	}
	if err != nil {
		return Checkpoint{}, err
	}
	if !info.IsDir() {
		return Checkpoint{}, errors.New("it is not a directory")
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Checkpoint{}, err
	}
	defer root.Close()
	r, sum, err := readRecord(root)
	if err != nil {
		return Checkpoint{}, err
	}
	c := Checkpoint{Name: name, Dir: dir, Info: r.Info, Generation: r.Generation, New: r.NewBytes, Files: r.Files, sum: sum}
	for _, f := range r.Files {
		c.Bytes += f.Bytes
		if links(root, f.Name) > 1 {
			c.Shared += f.Bytes
		}
	}
	c.Pinned = isPinned(root)
	c.Verified = isVerified(root, sum)
	c.GivenUp = givenUpFor(root)
	c.Trial = trialOf(root)
	return c, nil
}

func readRecord(root *os.Root) (record, uint32, error) {
	f, _, err := criuimage.OpenIn(root, recordName)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, 0, fmt.Errorf("it is not complete: %s is missing", recordName)
	}
	if err != nil {
		return record{}, 0, err
	}
	defer f.Close()
	data, err := readAll(f, maxRecordBytes)
	if err != nil {
		return record{}, 0, err
	}
	r, sum, err := parseRecord(data)
	if err != nil {
		return record{}, 0, fmt.Errorf("%s is %w", recordName, err)
	}
	return r, sum, nil
}

// links returns how many names a file has, or 0 if that cannot be told.
func links(root *os.Root, name string) uint64 {
	info, err := root.Lstat(name)
	if err != nil {
		return 0
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return uint64(stat.Nlink)
}
