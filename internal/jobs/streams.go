package jobs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/units"
)

// leadsInto reports whether what is written to a stream is appended to a file: the stream is that file, or a pipe to a
// program that has it open, such as tee. What another program behind that one does is not known.
func leadsInto(stream io.Writer, path string) bool {
	f, isFile := stream.(*os.File)
	if !isFile {
		return false
	}
	at, err := f.Stat()
	file, fileErr := os.Stat(path)
	if err != nil || fileErr != nil {
		return false
	}
	if at.Mode()&os.ModeNamedPipe == 0 {
		return os.SameFile(at, file)
	}
	var pipe string
	err = proc.Use(f, func(fd int) (err error) {
		pipe, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		return err
	})
	pids, _ := proc.All()
	return err == nil && slices.ContainsFunc(pids, func(pid int) bool { return copies(pid, pipe, file) })
}

// copies reports whether a process can read a pipe, and write to a file. It may be any of this host: no inventory has it.
func copies(pid int, pipe string, file os.FileInfo) bool {
	open, _ := proc.Descriptors(pid) // it may have ended
	reads, writes := false, false
	for fd, link := range open {
		if !reads && link == pipe {
			info, _ := proc.ReadDescriptor(pid, strconv.Itoa(fd))
			reads, _ = info.Access()
		}
	}
	for fd := range open {
		if reads && !writes {
			other, err := os.Stat(fmt.Sprintf("/proc/%d/fd/%d", pid, fd))
			info, _ := proc.ReadDescriptor(pid, strconv.Itoa(fd))
			_, writes = info.Access()
			writes = writes && err == nil && os.SameFile(other, file)
		}
	}
	return reads && writes
}

// follower copies what is appended to the job's output file. It says once that this fails, and at its end what is
// missing.
type follower struct {
	*reporter
	file    *os.File
	to      io.Writer
	watcher *fsnotify.Watcher
	done    chan struct{}
	err     error // of the last copy
	warned  bool
}

// followOutput follows the output of a job from its present end on.
func followOutput(r *reporter, path string, to io.Writer) (*follower, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("output of the job: %w", err)
	}
	f := &follower{reporter: r, file: file, to: to, done: make(chan struct{})}
	_, err = file.Seek(0, io.SeekEnd)
	if err == nil {
		f.watcher, err = fsnotify.NewWatcher()
	}
	if err == nil {
		err = f.watcher.Add(path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("output of the job: %w", err), file.Close())
	}
	go f.run()
	return f, nil
}

func (f *follower) run() {
	defer close(f.done)
	for {
		f.show()
		var open bool
		select {
		case _, open = <-f.watcher.Events:
		case _, open = <-f.watcher.Errors: // some were lost
		}
		if !open {
			f.show()
			return
		}
	}
}

// show copies what is new. A file that has become shorter was emptied, as by logrotate's copytruncate.
func (f *follower) show() {
	at, err := f.file.Seek(0, io.SeekCurrent)
	if info, statErr := f.file.Stat(); err == nil && statErr == nil && info.Size() < at {
		at, _ = f.file.Seek(0, io.SeekStart)
	}
	n, err := io.Copy(f.to, f.file)
	if f.err = err; err == nil {
		return
	}
	_, _ = f.file.Seek(at+n, io.SeekStart) // it is shown as soon as it can be
	if !f.warned && !f.isUnread() {
		f.warned = true
		f.tellWaiting(fmt.Sprintf("the job's output cannot be shown (%v), and is complete in %s", err, f.file.Name()))
	}
}

// isUnread reports whether nobody is there to whom the output could be shown: a terminal that is gone does not end
// the job.
func (f *follower) isUnread() bool { return errors.Is(f.err, unix.EPIPE) || errors.Is(f.err, unix.EIO) }

// tellMissing tells how much of the output was not shown.
func (f *follower) tellMissing() {
	at, err := f.file.Seek(0, io.SeekCurrent)
	info, statErr := f.file.Stat()
	if f.err == nil || f.isUnread() || err != nil || statErr != nil || info.Size() <= at {
		return
	}
	f.tell(Event{
		Event: EventSkipped, warns: true,
		Message: fmt.Sprintf("the last %s of the job's output were not shown (%v): all of it is in %s",
			units.Size(info.Size()-at), f.err, f.file.Name()),
	})
}

// movedFrom returns criu's name for the file if that was renamed or removed, as by logrotate: the job still writes to
// it. It returns "" if the file is at path.
func (f *follower) movedFrom(path string) (name string) {
	file, err := f.file.Stat()
	if at, atErr := os.Stat(path); err != nil || atErr == nil && os.SameFile(at, file) {
		return ""
	}
	_ = proc.Use(f.file, func(fd int) (err error) {
		name, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		return err
	})
	return strings.TrimPrefix(strings.TrimSuffix(name, " (deleted)"), "/")
}

// readerPatience is how long to wait for whoever reads our output, and does not, at the end.
const readerPatience = 5 * time.Second

// stop copies what is left and ends.
func (f *follower) stop() {
	f.watcher.Close()
	select {
	case <-f.done:
		f.tellMissing()
	case <-time.After(readerPatience): // all of it is in the file
	}
	f.file.Close()
}
