package pages

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"cucriu/internal/proc"
)

// Store is where the pages of processes go and come back from: [Files], or for example
// another host. A process is named by its pid in the image.
type Store interface {
	// Create prepares for the pages of a process under the names in the listing.
	Create(process int, l *Listing) (Output, error)
	// Open finds the pages that a listing describes. It refuses pages that are not the ones
	// that were written, as far as it can tell without reading all of them.
	Open(process int, l *Listing) (Input, error)
	// Remove removes the pages. Pages that do not exist are no error.
	Remove(process int, l *Listing) error
}

// Output takes the pages of one process.
type Output interface {
	Sink
	Held
	// Reserve prepares for so many bytes, which are an estimate, if that makes Put quicker.
	Reserve(bytes int64)
	// Finish ends the writing and returns a listing of what was written. It fails if this
	// is more memory than an [Input] accepts.
	Finish() (Listing, error)
	// Sync waits until everything is durable. It calls moved whenever a part is durable:
	// from several goroutines, and, if there is much to sync, long before the end.
	Sync(moved func()) error
	// Remove removes everything that was written.
	Remove() error
}

// Input gives back the pages of one process.
type Input interface {
	Source
	Held
	// Ranges returns the memory that the chunks cover.
	Ranges() []proc.Range
}

// Held is an open part of a store.
type Held interface {
	// Files returns the open files of the pages. As long as a process has them open, the
	// pages can be reached, even after their names are gone. A store that keeps its pages
	// elsewhere has none.
	Files() []*os.File
	// Identity returns what tells the open files from other files that may get their names.
	Identity() (map[string]FileID, error)
	Close() error
}

// Files is a [Store] of files in a directory.
type Files struct {
	Dir string
	// SyncAlong says to start writing each chunk to the disk as soon as it is in its file,
	// so that less is left to sync at the end.
	SyncAlong bool
	// Written, if it is set, is told of every part of a file that is complete, in the order of the
	// file. It is called by several goroutines, one for each file, and the process stands still
	// meanwhile.
	Written func(f *os.File, offset, size int64)
}

// Create creates the files, empty. They must not exist yet. If one cannot be created, none
// remains.
func (s Files) Create(process int, l *Listing) (Output, error) {
	w, err := Create(s.Dir, l.ID, process, len(l.ShardBytes))
	if err != nil {
		return nil, err // not an Output that holds a nil Writer
	}
	w.sync, w.written = s.SyncAlong, s.Written
	return w, nil
}

// Open opens the files by their names.
func (s Files) Open(process int, l *Listing) (Input, error) {
	files, err := OpenFiles(s.Dir, process, l)
	if err != nil {
		return nil, err
	}
	return newInput(files, process, l)
}

// Remove removes the files by their names.
func (s Files) Remove(process int, l *Listing) error {
	return removeAll(l.Names(process), func(name string) string { return filepath.Join(s.Dir, name) })
}

// Names returns the names of all files of pages in the directory, of all processes and
// dumps.
func (s Files) Names() ([]string, error) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if filePattern.MatchString(entry.Name()) {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// RemoveExcept removes all files of pages except those with the names in keep.
func (s Files) RemoveExcept(keep map[string]bool) error {
	names, err := s.Names()
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return keep[name] })
	return removeAll(names, func(name string) string { return filepath.Join(s.Dir, name) })
}

// OpenHeld opens files that another process, the holder, has open as consecutive
// descriptors starting at first. The names of the files may be gone.
func OpenHeld(holder, first, process int, l *Listing) (Input, error) {
	var files []*os.File
	for i, name := range l.Names(process) {
		fd, err := unix.Open(filepath.Join("/proc", strconv.Itoa(holder), "fd", strconv.Itoa(first+i)), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			closeAll(files)
			return nil, fmt.Errorf("%s, which process %d holds: %w", name, holder, err)
		}
		files = append(files, os.NewFile(uintptr(fd), name))
	}
	return newInput(files, process, l)
}

func newInput(files []*os.File, process int, l *Listing) (Input, error) {
	r, err := NewReader(files, process, l)
	if err != nil {
		return nil, err // not an Input that holds a nil Reader
	}
	return r, nil
}

// FileID identifies a file or directory independently of its name.
type FileID struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

// Identify returns the identity of a file, or the zero FileID if info has none.
func Identify(info fs.FileInfo) FileID {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return FileID{}
	}
	return FileID{Device: stat.Dev, Inode: stat.Ino}
}

func identities(files []*os.File) (map[string]FileID, error) {
	ids := make(map[string]FileID)
	for _, f := range files {
		info, err := f.Stat()
		if err != nil {
			return nil, fmt.Errorf("pages: %w", err)
		}
		ids[filepath.Base(f.Name())] = Identify(info)
	}
	return ids, nil
}
