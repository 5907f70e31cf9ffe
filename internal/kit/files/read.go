package files

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// open opens the file for reading. Nobody notices it if a process can read the file: its descriptor is
// shared. Opening a file may wait for whoever answers for it (fanotify, a server), and breaks leases.
func (f *openFile) open() (source, error) {
	if f.readable != nil {
		if s, err := f.readable.share(inodeOf(f.stat)); err == nil {
			return s, nil
		}
	}
	return f.reopen()
}

// reopen opens the file by its link below /proc. This is the same inode, whatever has become of its path.
func (f *openFile) reopen() (*os.File, error) {
	return os.OpenFile(f.link, os.O_RDONLY|unix.O_NONBLOCK, 0)
}

// share duplicates a descriptor of a process. It fails if that leads to another file by now.
func (d descriptor) share(want inode) (source, error) {
	process, err := proc.Open(d.pid)
	if err != nil {
		return nil, err
	}
	defer process.Close()
	fd, err := process.DuplicateDescriptor(d.number)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && inodeOf(st) != want {
		err = unix.ESTALE
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return shared(fd), nil
}

// shared is a descriptor that a process has, too. Its offset and its mode are that process's.
type shared int

func (s shared) ReadAt(p []byte, at int64) (read int, err error) {
	for read < len(p) {
		n, err := unix.Pread(int(s), p[read:], at+int64(read))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return read, os.NewSyscallError("pread", err)
		case n == 0:
			return read, io.EOF
		}
		read += n
	}
	return read, nil
}

func (s shared) Close() error { return unix.Close(int(s)) }

// progress is how far work has come.
type progress struct{ last atomic.Pointer[step] }

type step struct {
	file name
	at   time.Time
}

// reach notes that work has come to a file.
func (p *progress) reach(file name) { p.last.Store(&step{file, time.Now()}) }

// reading notes what is read from a file.
func (p *progress) reading(file name, from io.Reader) io.Reader {
	return readerFunc(func(b []byte) (int, error) {
		p.reach(file)
		return from.Read(b)
	})
}

type readerFunc func(b []byte) (int, error)

func (r readerFunc) Read(b []byte) (int, error) { return r(b) }

// unstalled calls do, and leaves it behind when it makes no progress for a time: a call of the kernel about
// a file may wait without end for a disk, a server, or whoever answers for the file, and no signal ends it
// but SIGKILL. The job is stopped meanwhile, and the caller undoes that.
func unstalled(ctx context.Context, patience time.Duration, do func(context.Context, *progress) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	at := new(progress)
	at.reach("")
	done := make(chan error, 1)
	go func() { done <- do(ctx, at) }()
	for {
		last := at.last.Load()
		select {
		case err := <-done:
			return err
		case <-time.After(time.Until(last.at.Add(patience))):
		}
		if at.last.Load() == last {
			return fmt.Errorf("%v could not be opened or read within %v: its disk, its server, or a program that has to allow it (fanotify) does not answer", last.file, patience)
		}
	}
}
