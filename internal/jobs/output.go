package jobs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
)

// follower copies what is appended to the job's output file.
type follower struct {
	file    *os.File
	to      io.Writer
	watcher *fsnotify.Watcher
	done    chan struct{}
}

// followOutput follows the output of a job from its present end on.
func followOutput(path string, to io.Writer) (*follower, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("output of the job: %w", err)
	}
	f := &follower{file: file, to: to, done: make(chan struct{})}
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
		_, _ = io.Copy(f.to, f.file) // a terminal that is gone does not end the job
		open := true
		select {
		case _, open = <-f.watcher.Events:
		case _, open = <-f.watcher.Errors: // some were lost
		}
		if !open {
			_, _ = io.Copy(f.to, f.file)
			return
		}
	}
}

// readerPatience is how long to wait for whoever reads our output, and does not, at the end.
const readerPatience = 5 * time.Second

// stop copies what is left and ends.
func (f *follower) stop() {
	f.watcher.Close()
	select {
	case <-f.done:
	case <-time.After(readerPatience): // all of it is in the file
	}
	f.file.Close()
}
