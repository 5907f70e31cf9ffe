package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// arrivals notices when a file is renamed into each of several folders: the status that a
// process of the workload writes at each tick, or an answer of that process.
type arrivals struct {
	name    string
	file    *os.File
	folders int
}

// watchFor starts to watch.
func watchFor(name string, folders []string) (*arrivals, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	a := &arrivals{name: name, file: os.NewFile(uintptr(fd), "inotify"), folders: len(folders)}
	for _, folder := range folders {
		if _, err := unix.InotifyAddWatch(fd, folder, unix.IN_MOVED_TO); err != nil {
			return nil, errors.Join(fmt.Errorf("watch %s: %w", folder, err), a.Close())
		}
	}
	return a, nil
}

// wait waits until the file has arrived the given number of times in each folder, and
// returns when the last arrival was seen.
func (a *arrivals) wait(ctx context.Context, times int) (time.Time, error) {
	stop := context.AfterFunc(ctx, func() { _ = a.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	seen := make(map[int32]int)
	missing := a.folders
	buffer := make([]byte, 64<<10)
	for missing > 0 {
		n, err := a.file.Read(buffer)
		if ctx.Err() != nil {
			return time.Time{}, fmt.Errorf("wait for %s in %d folders: %w", a.name, missing, context.Cause(ctx))
		}
		if err != nil {
			return time.Time{}, err
		}
		for rest := buffer[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			event := (*unix.InotifyEvent)(unsafe.Pointer(&rest[0]))
			name := rest[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+event.Len]
			rest = rest[unix.SizeofInotifyEvent+event.Len:]
			if string(bytes.TrimRight(name, "\x00")) != a.name {
				continue
			}
			if seen[event.Wd]++; seen[event.Wd] == times {
				missing--
			}
		}
	}
	return time.Now(), nil
}

// Close stops watching.
func (a *arrivals) Close() error { return a.file.Close() }
