package criuimage

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/fdinfo"
	file_lock "github.com/checkpoint-restore/go-criu/v7/crit/images/file-lock"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/regfile"
	remap "github.com/checkpoint-restore/go-criu/v7/crit/images/remap-file-path"
	sk_unix "github.com/checkpoint-restore/go-criu/v7/crit/images/sk-unix"
	"golang.org/x/sys/unix"
)

// File is a file or a directory that criu opens by its path at a restore.
type File struct {
	Path string
	Mode uint32 // with its kind; 0 if criu does not compare it
	Size int64  // -1 if criu does not compare it
	// Written says that it is a regular file which the job has open for writing.
	Written bool
	// AtEnd says that the job writes to it, and did so at its end when it was dumped.
	AtEnd bool
}

// Files returns what criu opens by its path, in the order of the image. It leaves out what criu
// makes by itself or finds in mount namespaces of the image.
func Files(dir string) ([]File, error) {
	var files []File
	known, elsewhere := make(map[string]int), make(map[string]bool)
	err := eachNamed(dir, func(f *regfile.RegFileEntry) {
		i, found := known[f.GetName()]
		if !found {
			i, known[f.GetName()] = len(files), len(files)
			files = append(files, File{Path: f.GetName(), Size: -1})
		}
		of := &files[i]
		if f.Mode != nil {
			of.Mode = f.GetMode()
		}
		if f.Size != nil {
			of.Size = int64(f.GetSize())
		}
		if f.GetFlags()&unix.O_ACCMODE != unix.O_RDONLY {
			elsewhere[of.Path] = elsewhere[of.Path] || f.GetFlags()&unix.O_APPEND == 0 && f.GetPos() != f.GetSize()
			of.Written = of.Mode == 0 || of.Mode&unix.S_IFMT == unix.S_IFREG
			of.AtEnd = !elsewhere[of.Path]
		}
	})
	return files, err
}

// SharedMappings returns the paths of the files that processes have mapped shared and writable.
func SharedMappings(dir string) (paths map[string]bool, err error) {
	tasks, err := readTasks(dir)
	if err != nil {
		return nil, err
	}
	const fileShared = 1 << 7 // VMA_FILE_SHARED of criu's image.h
	ids := make(map[uint32]bool)
	for _, task := range tasks {
		memory, err := readAddressSpace(dir, task.PID)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has ended
		}
		if err != nil {
			return nil, err
		}
		for _, area := range memory.GetVmas() {
			if area.GetStatus()&fileShared != 0 && area.GetProt()&unix.PROT_WRITE != 0 {
				ids[uint32(area.GetShmid())] = true
			}
		}
	}
	paths = make(map[string]bool)
	err = eachNamed(dir, func(f *regfile.RegFileEntry) {
		if ids[f.GetId()] && f.GetMode()&unix.S_IFMT == unix.S_IFREG {
			paths[f.GetName()] = true
		}
	})
	return paths, err
}

// eachNamed visits the files that criu opens by their paths, outside of mount namespaces of the image.
func eachNamed(dir string, visit func(*regfile.RegFileEntry)) error {
	remapped, err := readRemapped(dir)
	if err != nil {
		return err
	}
	entries, err := readFiles(dir)
	for _, entry := range entries {
		if f := entry.GetReg(); f != nil && !f.GetExt() && f.GetMntId() == -1 && !remapped[f.GetId()] {
			visit(f)
		}
	}
	return err
}

// BoundSockets returns the paths to which criu binds UNIX sockets, outside of mount namespaces of the
// image.
func BoundSockets(dir string) ([]string, error) {
	entries, err := readFiles(dir)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, entry := range entries {
		socket := entry.GetUsk()
		path := socketPath(socket)
		if path != "" && !socket.GetDeleted() && socket.GetMntId() == -1 && !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// readRemapped returns the numbers of the files that have no name.
func readRemapped(dir string) (remapped map[uint32]bool, err error) {
	remapped = make(map[uint32]bool)
	err = eachEntry(dir, "remap-fpath.img", "REMAP_FPATH", func(entry *remap.RemapFilePathEntry) {
		remapped[entry.GetOrigId()] = true
	})
	return remapped, err
}

// Unnamed returns the paths that files and directories without a name get for a moment of a restore.
func Unnamed(dir string) (paths []string, err error) {
	remapped, err := readRemapped(dir)
	if err != nil {
		return nil, err
	}
	err = eachEntry(dir, FilesName, "FILES", func(entry *fdinfo.FileEntry) {
		if f := entry.GetReg(); f != nil && remapped[f.GetId()] {
			paths = append(paths, filepath.Join("/", f.GetName()))
		}
	})
	return paths, err
}

// OwnPaths returns the paths of what two jobs that are restored from an image cannot both have: files that are open for
// writing or locked, named pipes, and UNIX sockets.
func OwnPaths(dir string) ([]string, error) {
	paths, err := BoundSockets(dir)
	if err != nil {
		return nil, err
	}
	locked, err := readLocked(dir)
	if err != nil {
		return nil, err
	}
	err = eachNamed(dir, func(f *regfile.RegFileEntry) {
		kind := f.GetMode() & unix.S_IFMT
		isWritten := f.GetFlags()&unix.O_ACCMODE != unix.O_RDONLY && (kind == unix.S_IFREG || f.Mode == nil)
		if isWritten || kind == unix.S_IFIFO || locked[f.GetId()] {
			paths = append(paths, f.GetName())
		}
	})
	return paths, err
}

// readLocked returns the numbers of the files on which there are locks for writing: a restore would wait for whoever
// has them.
func readLocked(dir string) (locked map[uint32]bool, err error) {
	locked = make(map[uint32]bool)
	var all []error
	err = eachEntry(dir, "filelocks.img", "FILE_LOCKS", func(lock *file_lock.FileLockEntry) {
		if lock.GetType() != unix.F_WRLCK { // of flock(2), too
			return
		}
		name, err := openFilesOf(dir, int(lock.GetPid()))
		all = append(all, err, eachEntry(dir, name, "FDINFO", func(open *fdinfo.FdinfoEntry) {
			if int32(open.GetFd()) == lock.GetFd() {
				locked[open.GetId()] = true
			}
		}))
	})
	return locked, errors.Join(append(all, err)...)
}

// socketPath returns the path to which a UNIX socket is bound; "" if it has none.
func socketPath(socket *sk_unix.UnixSkEntry) string {
	path := string(bytes.TrimRight(socket.GetName(), "\x00"))
	if path == "" || path[0] == 0 {
		return ""
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(socket.GetNameDir(), path)
	}
	return path
}

func readFiles(dir string) ([]*fdinfo.FileEntry, error) {
	return readImage[*fdinfo.FileEntry](dir, FilesName, "FILES")
}
