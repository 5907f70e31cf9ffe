package place

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"cucriu/internal/durable"
)

// Feed is the standard input of a job that is passed on to it. All of it is kept in a file of Dir,
// and init passes it on through a FIFO. What the job has not read from the FIFO is in criu's
// image, and a checkpoint says how much had been passed on. So a job that goes on from a
// checkpoint is given again what it had read since.
type Feed struct {
	Dir  string `json:"dir"`
	From int64  `json:"from"` // how much of it was passed on before, in bytes
}

// The names of what is in the folder of a feed, and in that of a place.
const (
	streamName = "stream" // all of the input so far
	endName    = "end"    // how many bytes it has; there once it has come to its end
	fifoName   = "fifo"   // the job's standard input
	fedName    = "fed"    // how much of it init has passed on in this place; locked meanwhile
)

// OpenFeed opens the file of a feed to append to it.
func OpenFeed(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(filepath.Join(dir, streamName), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
}

// EndFeed says that a feed has come to its end.
func EndFeed(dir string) error {
	info, err := os.Stat(filepath.Join(dir, streamName))
	if err != nil {
		return err
	}
	return durable.WriteJSON(filepath.Join(dir, endName), info.Size())
}

// FeedEnded reports whether a feed has come to its end.
func FeedEnded(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, endName))
	return err == nil
}

// HoldFeed keeps init from passing on anything until release is called, and returns how much it
// has passed on. dir is the folder of the place. Without a feed it returns 0.
func HoldFeed(dir string) (fed int64, release func(), err error) {
	file, err := os.OpenFile(filepath.Join(dir, fedName), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, func() {}, nil
	}
	if err != nil {
		return 0, nil, fmt.Errorf("input of the job: %w", err)
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
	var data []byte
	if err == nil {
		data, err = io.ReadAll(file)
	}
	if err == nil {
		fed, err = strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	}
	if err != nil {
		return 0, nil, errors.Join(fmt.Errorf("input of the job: %w", err), file.Close())
	}
	return fed, func() { file.Close() }, nil
}

// feeder is init's part of a feed.
type feeder struct {
	Feed
	place string   // its folder
	fed   *os.File // holds At
	fifo  int      // for reading and writing, so that to open it waits for nobody
}

func newFeeder(place string, feed Feed) (*feeder, error) {
	f := &feeder{Feed: feed, place: place}
	path := filepath.Join(f.Dir, fifoName)
	err := os.MkdirAll(f.Dir, 0o700)
	if err == nil {
		if err = unix.Mkfifo(path, 0o600); errors.Is(err, unix.EEXIST) {
			err = nil
		}
	}
	if err == nil {
		f.fifo, err = unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	}
	if err == nil {
		f.fed, err = os.OpenFile(filepath.Join(place, fedName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	}
	if err == nil {
		err = f.note()
	}
	if err != nil {
		return nil, fmt.Errorf("input of the job: %w", err)
	}
	return f, nil
}

// input opens what the job reads.
func (f *feeder) input() (*os.File, error) {
	return os.OpenFile(filepath.Join(f.Dir, fifoName), os.O_RDONLY, 0)
}

// note writes down how much was passed on.
func (f *feeder) note() error {
	_, err := f.fed.WriteAt(fmt.Appendf(nil, "%-20d\n", f.From), 0)
	return err
}

// run passes on what there is, and what comes, to the end. It begins when the job runs: before,
// criu may have to fill the FIFO.
func (f *feeder) run() {
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		err = errors.Join(watcher.Add(f.place), watcher.Add(f.Dir))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "input of the job:", err)
		return
	}
	defer watcher.Close()
	wait := func() {
		select {
		case <-watcher.Events:
		case <-watcher.Errors: // some were lost
		}
	}
	for !f.jobRuns() {
		wait()
	}
	for {
		passed, err := f.pass()
		if err != nil {
			fmt.Fprintln(os.Stderr, "input of the job:", err)
		}
		if passed {
			continue
		}
		if f.isOver() {
			unix.Close(f.fifo)
			return
		}
		wait()
	}
}

func (f *feeder) jobRuns() bool {
	var r record
	return readJSON(filepath.Join(f.place, placeName), &r) == nil && r.Running
}

// isOver reports whether all was passed on, and no more will come.
func (f *feeder) isOver() bool {
	var size int64
	return readJSON(filepath.Join(f.Dir, endName), &size) == nil && f.From >= size
}

// pass passes on what fits into the FIFO. It waits until there is room.
func (f *feeder) pass() (passed bool, err error) {
	stream, err := os.Open(filepath.Join(f.Dir, streamName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer stream.Close()
	buffer := make([]byte, 1<<16)
	n, err := stream.ReadAt(buffer, f.From)
	if n == 0 {
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return false, err
	}
	room := []unix.PollFd{{Fd: int32(f.fifo), Events: unix.POLLOUT}}
	if _, err := unix.Poll(room, -1); err != nil && !errors.Is(err, unix.EINTR) {
		return false, err
	}
	// A dump must find as much in the FIFO as is written down.
	if err := unix.Flock(int(f.fed.Fd()), unix.LOCK_EX); err != nil {
		return errors.Is(err, unix.EINTR), nil
	}
	defer func() { _ = unix.Flock(int(f.fed.Fd()), unix.LOCK_UN) }()
	n, err = unix.Write(f.fifo, buffer[:n])
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	f.From += int64(n)
	return true, f.note()
}
