package wire

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
)

// file is a file that comes.
type file struct {
	name string

	mutex   sync.Mutex
	handle  *os.File // nil once the file is complete
	there   extents
	size    int64 // -1 until the sender has said it
	writing int   // how many writes are under way
}

// create creates a file that was not there.
func create(dir *os.Root, name string) (*file, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	handle, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	return &file{name: name, handle: handle, size: -1}, nil
}

// begin returns where to write a part that comes, or nil if all of it is there. Otherwise the
// caller says with end when it is written.
func (f *file) begin(part extent) (handle *os.File, missing int64, err error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.size >= 0 && part.end > f.size {
		return nil, 0, fmt.Errorf("%s: a chunk ends at %d, and the file has %d bytes", f.name, part.end, f.size)
	}
	if missing = f.there.missing(part); missing == 0 {
		return nil, 0, nil
	}
	if f.handle == nil {
		return nil, 0, errOver
	}
	f.writing++
	return f.handle, missing, nil
}

// end says that a part was written. It returns how many of its bytes are new, since another
// connection may have brought the same, and how many more extents there are now.
func (f *file) end(part extent) (added int64, more int, err error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.writing--
	added, more = f.there.missing(part), -len(f.there)
	f.there.add(part)
	if f.size >= 0 && part.end > f.size { // the size came meanwhile
		return 0, 0, fmt.Errorf("%s: a chunk ends at %d, and the file has %d bytes", f.name, part.end, f.size)
	}
	return added, more + len(f.there), f.closeIfComplete()
}

// close notes the size. The file stays open until all of it is there.
func (f *file) close(size int64) error {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	switch {
	case f.size == size:
		return nil // said again after a connection broke
	case f.size >= 0:
		return fmt.Errorf("%s has %d bytes, and then %d", f.name, f.size, size)
	case f.there.end() > size:
		return fmt.Errorf("%s has %d bytes, and a chunk ended at %d", f.name, size, f.there.end())
	}
	if f.handle == nil {
		return errOver
	}
	if err := f.handle.Truncate(size); err != nil { // zeros at the end are not written
		return err
	}
	f.size = size
	return f.closeIfComplete()
}

func (f *file) complete() bool {
	return f.size >= 0 && (f.size == 0 || len(f.there) == 1 && f.there[0] == extent{0, f.size})
}

func (f *file) closeIfComplete() error {
	if f.handle == nil || f.writing > 0 || !f.complete() {
		return nil
	}
	handle := f.handle
	f.handle = nil
	return handle.Close()
}

// check returns what is missing.
func (f *file) check() error {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	switch {
	case f.size < 0:
		return fmt.Errorf("%s: the sender has not said that it is complete", f.name)
	case !f.complete():
		whole := extent{0, f.size}
		return fmt.Errorf("%s: %d of %d bytes are missing", f.name, f.there.missing(whole), f.size)
	}
	return nil
}

// abandon closes the file, complete or not.
func (f *file) abandon() error {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.handle == nil {
		return nil
	}
	handle := f.handle
	f.handle = nil
	return handle.Close()
}

// isNoSpace reports whether a write failed because there is no room.
func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
