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

	"cucriu/criuutil/proc"
)

// Store is where the pages of processes go, and where they come back from: [Files],
// or for example another host. A process is named by the pid that its image has.
type Store interface {
	// Create makes room for the pages of a process under the name in the listing.
	Create(process int, l *Listing) (Output, error)
	// Open finds the pages that a listing describes, and refuses what is not what was
	// written, as far as that can be told without reading all of it.
	Open(process int, l *Listing) (Input, error)
	// Remove removes them. Those that are not there are no error.
	Remove(process int, l *Listing) error
}

// Output takes the pages of one process.
type Output interface {
	Sink
	Held
	// Finish ends the writing, and describes what was written. More memory than an
	// [Input] takes is an error.
	Finish() (Listing, error)
	// Sync waits until everything is durable, and tells moved whenever a part of it
	// is: from several goroutines, and long before the end if there is much.
	Sync(moved func()) error
	// Remove removes what was written.
	Remove() error
}

// Input gives back the pages of one process.
type Input interface {
	Source
	Held
	// Ranges is the memory that the chunks cover.
	Ranges() []proc.Range
}

// Held is a part of a store that is open.
type Held interface {
	// Files keep the pages in reach while somebody has them open, whatever becomes of
	// their names. A store that keeps the pages by itself has none.
	Files() []*os.File
	// Identity tells what is open from whatever else may get its name.
	Identity() (map[string]FileID, error)
	Close() error
}

// Files is a [Store] of files in a directory.
type Files struct {
	Dir string
	// SyncAlong says to begin to bring each chunk to the disk when it is written, so
	// that less is left to do at the end.
	SyncAlong bool
}

// Create makes the files, empty. They must not exist yet. If one cannot be made, none
// is left.
func (s Files) Create(process int, l *Listing) (Output, error) {
	w, err := Create(s.Dir, l.ID, process, len(l.ShardBytes))
	if err != nil {
		return nil, err // not a nil Writer
	}
	w.sync = s.SyncAlong
	return w, nil
}

// Open opens the files by their names.
func (s Files) Open(process int, l *Listing) (Input, error) {
	files, err := OpenFiles(s.Dir, process, l)
	if err != nil {
		return nil, err
	}
	return input(files, process, l)
}

// Remove removes the files by their names.
func (s Files) Remove(process int, l *Listing) error {
	return removeAll(l.Names(process), func(name string) string { return filepath.Join(s.Dir, name) })
}

// Names are the names of all files of pages in the directory, of any process and dump.
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

// RemoveExcept removes all files of pages but those with these names.
func (s Files) RemoveExcept(keep map[string]bool) error {
	names, err := s.Names()
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return keep[name] })
	return removeAll(names, func(name string) string { return filepath.Join(s.Dir, name) })
}

// OpenHeld opens files that another process has open, as the descriptors from first on,
// whatever has become of their names.
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
	return input(files, process, l)
}

func input(files []*os.File, process int, l *Listing) (Input, error) {
	r, err := NewReader(files, process, l)
	if err != nil {
		return nil, err // not a nil Reader
	}
	return r, nil
}

// FileID tells a file or directory from all others, whatever its name.
type FileID struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

// Identify returns the identity of a file, the zero one if it has none.
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
