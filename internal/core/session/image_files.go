package session

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"cucriu/internal/core/journal"
	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/pages"
	"cucriu/internal/kit/proc"
)

// OpenPages opens the pages of a member by the watcher's descriptors or, if the watcher is gone, by
// their names.
func OpenPages(s *journal.Record, m *journal.Member) (*pages.Reader, error) {
	input, err := watchedPages(s.Watcher, m)
	for _, dir := range []string{s.PublishedDir, s.ImageDir} {
		if err != nil && dir != "" {
			var bases []string
			if m.Base != nil {
				bases = []string{m.Base.Dir}
			}
			input, err = pages.Open(dir, m.ImagePID, m.Pages.Listing, bases...)
		}
	}
	return input, err
}

func watchedPages(watching *proc.Ident, m *journal.Member) (*pages.Reader, error) {
	if watching == nil {
		return nil, errors.New("there is no watcher")
	}
	watcher, err := proc.Reopen(*watching)
	if err != nil {
		return nil, err
	}
	defer watcher.Close()
	return pages.OpenHeld(watcher.PID, m.Pages.WatcherFD, m.ImagePID, m.Pages.Listing)
}

// OpenBase opens the image that a member's is based on, by the watcher's descriptors or by its name.
func OpenBase(s *journal.Record, m *journal.Member) (*pages.Base, error) {
	if s.Watcher != nil {
		if watcher, err := proc.Reopen(*s.Watcher); err == nil {
			defer watcher.Close()
			if held, err := pages.OpenHeld(watcher.PID, m.Base.WatcherFD, m.Base.PID, m.Base.Listing); err == nil {
				return &pages.Base{Reader: held, PID: m.Base.PID, Listing: m.Base.Listing}, nil
			}
		}
	}
	return pages.OpenBase(m.Base.Dir, m.Base.PID, m.Base.Listing)
}

// RemovePages removes the pages of a dump that was not completed.
func RemovePages(s *journal.Record) error {
	if s.Kind != journal.KindDump || s.Step == journal.StepDumped {
		return nil
	}
	var errs []error
	for _, m := range s.Members {
		if m.Pages != nil {
			errs = append(errs, pages.Remove(s.ImageDir, m.ImagePID, m.Pages.Listing))
		}
	}
	return errors.Join(errs...)
}

// neededBy names an open session that may restore its processes from files in a directory. It
// returns "" if there is none.
func neededBy(runDir, dir string) (string, error) {
	names, err := pages.Names(dir)
	if err != nil || len(names) == 0 {
		return "", err // no journal needs to be read
	}
	info, err := os.Stat(dir)
	if err != nil {
		return "", err
	}
	sessions, err := journal.List(runDir)
	if err != nil {
		return "", err
	}
	for _, s := range sessions {
		if s.Kind != journal.KindDump || s.Outcome != "" || !slices.ContainsFunc(s.Members, func(m journal.Member) bool { return m.Pages != nil && m.Pages.Dropped }) {
			continue
		}
		if held, err := os.Stat(s.ImageDir); err == nil && os.SameFile(info, held) {
			return s.Name(), nil
		}
	}
	return "", nil
}

// CheckUnneeded refuses an image directory whose files a dump of the tree below root must not replace: they may be all
// that is left of another job. What is there of the tree itself is not needed, since it runs. name is the directory's.
func CheckUnneeded(runDir, dir, name string, root proc.Ident) error {
	session, err := neededBy(runDir, dir)
	if err != nil {
		return err
	}
	if session != "" {
		return fmt.Errorf("the image directory holds the only copy of the GPU state of an earlier dump's job, which is not recovered yet (session %s): recover it with cucriu recover, or dump into another directory", session)
	}
	of, err := imagedir.ReadManifest(dir)
	if errors.Is(err, os.ErrNotExist) || !imagedir.HasInventory(dir) {
		return nil
	}
	made := "it cannot be read"
	if err == nil {
		if own, err := isImageOf(dir, of, root); own || err != nil {
			return err
		}
		made = fmt.Sprintf("made of process %d on %s", of.RootPID, of.Created.UTC().Format(time.DateTime))
	}
	return fault.New(fmt.Sprintf("image directory %s holds the image of another job (%s), and a dump never overwrites another", name, made),
		"dump into another directory, or remove this image")
}

// isImageOf reports whether the image in a directory, wherever it was copied, was made of the process that is the tree's
// root, or whether that was restored from it: criu gives a process its pid and the addresses of its memory back, which
// the kernel chooses at random when a program is started.
func isImageOf(dir string, of imagedir.Manifest, root proc.Ident) (bool, error) {
	own, err := root.Own()
	if err != nil || own.PID != of.RootPID {
		return false, err
	}
	layout, err := proc.LayoutOf(root.PID)
	if err != nil {
		return false, err
	}
	dumped, err := criuimage.LayoutOf(dir, of.RootPID)
	return err == nil && dumped == layout, nil // of what cannot be read, nobody knows
}

// DropPartial removes what a client wrote, if that client has ended and cannot give it its name any
// more.
func DropPartial(s *journal.Record) error {
	if s.Client == nil || !imagedir.IsPartial(s.ImageDir) {
		return nil
	}
	if gone, err := Gone(*s.Client); err != nil || !gone {
		return err
	}
	if err := os.RemoveAll(s.ImageDir); err != nil {
		return fmt.Errorf("remove the partial image: %w", err)
	}
	return nil
}
