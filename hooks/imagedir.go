package hooks

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
)

// An image directory is complete or absent: criu writes into a partial one
// beside it, which takes its name once everything in it is on disk.

const partialInfix = ".partial-" // between the name and the pid of who writes it

// newPartial makes the folder that criu writes into before its images get the
// name of dir. dir must not exist yet, or be empty: a dump never overwrites
// another. What a killed dump to the same name has left behind is removed.
func (h *Hook) newPartial(dir string) (string, error) {
	if err := checkVacant(dir); err != nil {
		return "", err
	}
	if err := h.removeStalePartials(dir); err != nil {
		return "", err
	}
	partial := dir + partialInfix + strconv.Itoa(os.Getpid())
	if err := os.Mkdir(partial, 0o700); err != nil {
		return "", fmt.Errorf("image directory: %w", err)
	}
	return partial, nil
}

func checkVacant(dir string) error {
	info, err := os.Lstat(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("image directory: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("image directory %s is not a directory: name a new one", dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("image directory: %w", err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("image directory %s is not empty, and a dump never overwrites another: name a new one, or remove it", dir)
	}
	// An empty directory is replaced, which a mount point cannot be.
	var itself, parent unix.Stat_t
	if err := errors.Join(unix.Stat(dir, &itself), unix.Stat(filepath.Dir(dir), &parent)); err != nil {
		return fmt.Errorf("image directory %s: %w", dir, err)
	}
	if itself.Dev != parent.Dev {
		return fmt.Errorf("image directory %s is a mount point: name a new directory inside it", dir)
	}
	return nil
}

// removeStalePartials removes the partial directories of dir whose writer has
// ended, but for one from which a job must yet be brought back.
func (h *Hook) removeStalePartials(dir string) error {
	entries, err := os.ReadDir(filepath.Dir(dir))
	if err != nil {
		return fmt.Errorf("image directory: %w", err)
	}
	for _, entry := range entries {
		pid, isPartial := strings.CutPrefix(entry.Name(), filepath.Base(dir)+partialInfix)
		writer, err := strconv.Atoi(pid)
		if !isPartial || err != nil || !entry.IsDir() {
			continue
		}
		process, err := proc.Open(writer)
		if err == nil {
			process.Close()
			continue
		}
		partial := filepath.Join(filepath.Dir(dir), entry.Name())
		if isClaimed(partial) {
			continue // its writer has the pid in another namespace
		}
		if session, err := neededBy(h.Config.RunDir, partial); err != nil || session != "" {
			h.Log.Info("what a killed dump has left stays for now: its job is not back yet", "directory", partial, "session", session, "error", err)
			continue
		}
		if err := os.RemoveAll(partial); err != nil {
			return fmt.Errorf("remove what a killed dump has left: %w", err)
		}
	}
	return nil
}

// dropPartial removes what a client wrote that is not there any more to give it
// its name.
func (s *Session) dropPartial() error {
	if s.Client == nil || !strings.Contains(filepath.Base(s.ImageDir), partialInfix) {
		return nil
	}
	client, err := proc.Reopen(*s.Client)
	if err == nil {
		client.Close()
		return nil
	}
	if !errors.Is(err, proc.ErrGone) {
		return err
	}
	if err := os.RemoveAll(s.ImageDir); err != nil {
		return fmt.Errorf("remove the partial image: %w", err)
	}
	return nil
}

// publish gives a complete image its name, once every byte of it is on disk.
func publish(partial, dir string) error {
	err := filepath.WalkDir(partial, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() && !entry.IsDir() {
			return err
		}
		return syncPath(path)
	})
	if err != nil {
		return fmt.Errorf("image directory: %w", err)
	}
	if err := os.Rename(partial, dir); err != nil {
		return fmt.Errorf("image directory: %w", err)
	}
	return syncPath(filepath.Dir(dir))
}

// syncPath makes a file, or the names in a directory, durable.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("fsync %s: %w", path, err)
	}
	return nil
}
