package migrate

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"cucriu/internal/migrate/wire"
)

// outgoing are the files of an image on their way. Those of the GPU state leave while the dump
// still writes them, and while criu writes its own.
type outgoing struct {
	sender *wire.Sender

	mu    sync.Mutex
	files map[string]*outgoingFile
}

type outgoingFile struct {
	*os.File
	sent *wire.File
}

func newOutgoing(sender *wire.Sender) *outgoing {
	return &outgoing{sender: sender, files: make(map[string]*outgoingFile)}
}

// wrote sends a part of a file that the dump has completed. It does not wait for that.
func (o *outgoing) wrote(f *os.File, offset, size int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	name := filepath.Base(f.Name())
	if o.files[name] == nil {
		own, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0) // the dump closes its own
		if err != nil {
			return // it is sent with the others
		}
		o.add(name, os.NewFile(uintptr(own), name))
	}
	o.files[name].sent.Grow(offset + size)
}

func (o *outgoing) add(name string, f *os.File) {
	o.files[name] = &outgoingFile{File: f, sent: o.sender.Add(name, f)}
}

// complete sends what there is of an image in a directory, except for some files, and returns its
// size in bytes.
func (o *outgoing) complete(dir string, except []string) (total int64, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, entry := range entries {
		name := entry.Name()
		if !entry.Type().IsRegular() || slices.Contains(except, name) {
			continue
		}
		info, err := entry.Info()
		if err != nil {
			return 0, err
		}
		if o.files[name] == nil {
			f, err := os.Open(filepath.Join(dir, name))
			if err != nil {
				return 0, err
			}
			o.add(name, f)
		}
		own, err := o.files[name].Stat()
		if err != nil {
			return 0, err
		}
		if !os.SameFile(own, info) {
			return 0, fmt.Errorf("the dump has exchanged %s, which was sent already", name)
		}
		o.files[name].sent.Complete(own.Size())
		total += own.Size()
	}
	return total, nil
}

func (o *outgoing) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range o.files {
		f.Close()
	}
}
