package hooks

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/pages"
	"cucriu/criuutil/proc"
)

// The fast lane takes GPU state around criu. On a dump, a process's new memory
// since the checkpoint began (its staging memory) is copied into files beside
// criu's images, and dropped in the process, before criu looks at it. On the way
// back it is filled in again before anything of the process runs.
//
// From the drop on, the files are the only copy. So they are on disk before
// (unless the configuration says otherwise), the journal says ahead that they will
// be needed, and the watcher holds them open from before the first process is
// touched: a job comes back although somebody removes the image of a dump that
// failed. And the dropped memory is made inaccessible: whoever restores the
// process without this program gets a driver that fails, not one that takes
// zeros for the state of the GPU.

// MemberPages is what the fast lane has of a process's memory.
type MemberPages struct {
	// Listing names the files; it says nothing else of them until they are complete.
	Listing *pages.Listing `json:"listing"`
	// WatcherFD is the first of the descriptors by which the watcher has them.
	WatcherFD int `json:"watcher_fd"`
	// Dropped says that the memory may not be in the process any more.
	Dropped bool `json:"dropped"`
}

// validate refuses what nobody here can have written.
func (p *MemberPages) validate() error {
	switch {
	case p == nil:
		return nil
	case p.Listing == nil:
		return errors.New("it names no files of a process's memory")
	case p.WatcherFD < firstWatcherFD:
		return fmt.Errorf("it has them as descriptor %d of the watcher", p.WatcherFD)
	case p.Dropped:
		return p.Listing.Validate()
	}
	return p.Listing.ValidateNames()
}

// firstWatcherFD is the first descriptor that a watcher inherits beside its
// standard streams.
const firstWatcherFD = 3

// droppedPages is what a manifest says of the files.
func (m *Member) droppedPages() *pages.Listing {
	if m.Pages == nil || !m.Pages.Dropped {
		return nil
	}
	return m.Pages.Listing
}

// openPages opens the files of a member's memory, by the watcher's descriptors or,
// if it is gone, by their names.
func (s *Session) openPages(m *Member) (*pages.Reader, error) {
	files, err := s.watchedPages(m)
	for _, dir := range []string{s.PublishAs, s.ImageDir} {
		if err != nil && dir != "" {
			files, err = pages.OpenFiles(dir, m.ImagePID, m.Pages.Listing)
		}
	}
	if err != nil {
		return nil, err
	}
	return pages.NewReader(files, m.ImagePID, m.Pages.Listing)
}

// watchedPages opens the files that the watcher holds, whatever has become of
// their names.
func (s *Session) watchedPages(m *Member) ([]*os.File, error) {
	if s.Watcher == nil {
		return nil, errors.New("there is no watcher")
	}
	watcher, err := proc.Reopen(*s.Watcher)
	if err != nil {
		return nil, err
	}
	defer watcher.Close()
	var files []*os.File
	for i, name := range m.Pages.Listing.Names(m.ImagePID) {
		fd, err := unix.Open(filepath.Join("/proc", strconv.Itoa(watcher.PID), "fd", strconv.Itoa(m.Pages.WatcherFD+i)), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			closeFiles(files)
			return nil, fmt.Errorf("%s, which the watcher holds: %w", name, err)
		}
		files = append(files, os.NewFile(uintptr(fd), name))
	}
	return files, nil
}

// makeRoomForFiles makes room for so many files in this process's table of
// descriptors. The kernel makes a table larger that threads share only after an RCU
// grace period: 15 to 40 ms, from 64 descriptors on. So it is done while something else
// is, and only if it is needed: a process cannot end in the middle of it.
func makeRoomForFiles(n int) {
	const most, others = 1 << 12, 16
	if n += others; n <= 64 || n > most {
		return
	}
	if fd, err := unix.FcntlInt(uintptr(unix.Stderr), unix.F_DUPFD_CLOEXEC, n); err == nil {
		unix.Close(fd)
	}
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// removePages removes the files of a dump that was not completed.
func (s *Session) removePages() error {
	if s.Kind != KindDump || s.Step == "dumped" {
		return nil
	}
	var errs []error
	for _, m := range s.Members {
		if m.Pages == nil {
			continue
		}
		for _, name := range m.Pages.Listing.Names(m.ImagePID) {
			if err := os.Remove(filepath.Join(s.ImageDir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// neededBy names an open session that may bring its processes back from files in
// a directory; "" if there is none.
func neededBy(runDir, dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	if !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return pages.FilePattern.MatchString(e.Name()) }) {
		return "", nil // and no journal need be read
	}
	info, err := os.Stat(dir)
	if err != nil {
		return "", err
	}
	sessions, err := Sessions(runDir)
	if err != nil {
		return "", err
	}
	for _, s := range sessions {
		if s.Kind != KindDump || s.Outcome != "" || !slices.ContainsFunc(s.Members, func(m Member) bool { return m.Pages != nil && m.Pages.Dropped }) {
			continue
		}
		if held, err := os.Stat(s.ImageDir); err == nil && os.SameFile(info, held) {
			return s.Name(), nil
		}
	}
	return "", nil
}

// checkUnneeded refuses an image directory whose files must not be replaced yet.
func (h *Hook) checkUnneeded(dir string) error {
	session, err := neededBy(h.Config.RunDir, dir)
	if err == nil && session != "" {
		err = fmt.Errorf("the image directory holds the only copy of the GPU state of an earlier dump's job, which is not back yet (session %s): bring it back with cucriu recover, or dump into another directory", session)
	}
	return err
}

// pageFiles is how many files of the fast lane the image has.
func (m *Manifest) pageFiles() int {
	n := 0
	for _, p := range m.Processes {
		if p.Pages != nil {
			n += p.Pages.Files()
		}
	}
	return n
}

// openPages opens the files of all processes of an image, and refuses what is
// not what the dump wrote, as far as that can be told without reading all of it.
func (m *Manifest) openPages(dir string) ([]*os.File, error) {
	var all []*os.File
	for _, p := range m.Processes {
		if p.Pages == nil {
			continue
		}
		files, err := pages.OpenFiles(dir, p.PID, p.Pages)
		if err == nil {
			all = append(all, files...)
			err = pages.Check(files, p.PID, p.Pages)
		}
		if err != nil {
			closeFiles(all)
			return nil, fmt.Errorf("the GPU state of process %d (%s): %w", p.PID, p.Name, err)
		}
	}
	return all, nil
}

// CheckPages refuses an image directory whose files of the fast lane are not what
// the dump wrote, as far as that can be told without reading all of them.
func (m *Manifest) CheckPages(dir string) error {
	files, err := m.openPages(dir)
	closeFiles(files)
	return err
}

// pagesToFill is what a restore has to fill in; fd is the watcher's first
// descriptor that is not assigned yet.
func pagesToFill(l *pages.Listing, fd *int) *MemberPages {
	if l == nil {
		return nil
	}
	p := &MemberPages{Listing: l, WatcherFD: *fd, Dropped: true}
	*fd += l.Files()
	return p
}

// removeOtherPages removes the files of an earlier dump into the same
// directory, whose manifest has just been replaced.
func removeOtherPages(dir string, m Manifest) error {
	keep := make(map[string]bool)
	for _, p := range m.Processes {
		if p.Pages != nil {
			for _, name := range p.Pages.Names(p.PID) {
				keep[name] = true
			}
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("image directory: %w", err)
	}
	for _, entry := range entries {
		if pages.FilePattern.MatchString(entry.Name()) && !keep[entry.Name()] {
			if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("remove the GPU state of an earlier dump: %w", err)
			}
		}
	}
	return nil
}
