package hooks

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/internal/journal"
	"cucriu/internal/pages"
	"cucriu/internal/proc"
)

// The fast lane takes GPU state around criu. The staging memory of a process is the memory
// that it has gained since its checkpoint began. On a dump it is copied into files beside
// criu's images, and dropped in the process, before criu looks at it. On the way back it is
// filled in again before any thread of the job runs.
//
// From the drop on, the files are the only copy. So they are on disk before the drop
// (unless the configuration says otherwise), and the journal says ahead that they will be
// needed. The watcher holds them open from before the first process is touched, so a job
// comes back even if somebody removes the image of a dump that failed. The dropped memory
// is also made inaccessible: if somebody restores the process without this program, the
// driver fails, and does not take zeros for the state of the GPU.

// openPages opens the pages of a member by the watcher's descriptors or, if the watcher is
// gone, by their names.
func (s *session) openPages(m *journal.Member) (pages.Input, error) {
	input, err := s.watchedPages(m)
	for _, dir := range []string{s.CommittedDir, s.ImageDir} {
		if err != nil && dir != "" {
			input, err = pages.Files{Dir: dir}.Open(m.ImagePID, m.Pages.Listing)
		}
	}
	return input, err
}

func (s *session) watchedPages(m *journal.Member) (pages.Input, error) {
	if s.Watcher == nil {
		return nil, errors.New("there is no watcher")
	}
	watcher, err := proc.Reopen(*s.Watcher)
	if err != nil {
		return nil, err
	}
	defer watcher.Close()
	return pages.OpenHeld(watcher.PID, m.Pages.WatcherFD, m.ImagePID, m.Pages.Listing)
}

// makeRoomForFiles makes room for n files in this process's table of descriptors. The
// kernel enlarges a table that threads share only after an RCU grace period: 15 to 40 ms,
// from 64 descriptors on. So this is done while something else goes on. And it is done only
// if it is needed, because a process cannot end in the middle of it.
func makeRoomForFiles(n int) {
	const most, others = 1 << 12, 16
	if n += others; n <= 64 || n > most {
		return
	}
	if fd, err := unix.FcntlInt(uintptr(unix.Stderr), unix.F_DUPFD_CLOEXEC, n); err == nil {
		unix.Close(fd)
	}
}

// removePages removes the pages of a dump that was not completed.
func (s *session) removePages() error {
	if s.Kind != journal.KindDump || s.Step == journal.StepDumped {
		return nil
	}
	var errs []error
	for _, m := range s.Members {
		if m.Pages != nil {
			errs = append(errs, pages.Files{Dir: s.ImageDir}.Remove(m.ImagePID, m.Pages.Listing))
		}
	}
	return errors.Join(errs...)
}

// neededBy names an open session that may bring its processes back from files in a
// directory. It returns "" if there is none.
func neededBy(runDir, dir string) (string, error) {
	names, err := pages.Files{Dir: dir}.Names()
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

// checkUnneeded refuses an image directory whose files must not be replaced yet.
func (h *Hook) checkUnneeded(dir string) error {
	session, err := neededBy(h.Config.RunDir, dir)
	if err == nil && session != "" {
		err = fmt.Errorf("the image directory holds the only copy of the GPU state of an earlier dump's job, which is not back yet (session %s): bring it back with cucriu recover, or dump into another directory", session)
	}
	return err
}
