package criuimage

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/fdinfo"
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
	entries, err := readFiles(dir)
	if err != nil {
		return nil, err
	}
	remaps, err := readImage[*remap.RemapFilePathEntry](dir, "remap-fpath.img", "REMAP_FPATH")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	remapped := make(map[uint32]bool)
	for _, entry := range remaps {
		remapped[entry.GetOrigId()] = true
	}
	var files []File
	known, elsewhere := make(map[string]int), make(map[string]bool)
	for _, entry := range entries {
		f := entry.GetReg()
		if f == nil || f.GetExt() || f.GetMntId() != -1 || remapped[f.GetId()] {
			continue
		}
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
	}
	return files, nil
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
