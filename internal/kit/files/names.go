package files

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// OtherNameError says that a checkpoint was made while the job's directory had another name, and that
// its files cannot be found by that name.
type OtherNameError struct{ Output, Path string }

func (e *OtherNameError) Error() string {
	return fmt.Sprintf("it was made while the job directory had another name: it names %s as %s, which is missing: to restore it anyway, mount the directory there (mount --bind)", e.Output, e.Path)
}

// CheckNames fails with an [*OtherNameError] if the checkpoint in dir names the output of the job by
// another path, which is missing. named are the paths in criu's images.
func CheckNames(dir, output string, named []string) error {
	l, err := readList(dir)
	if err != nil {
		return nil // PutBack refuses it
	}
	var st unix.Stat_t
	statErr := unix.Stat(output, &st)
	isOther := func(path string) bool {
		_, err := statPath(path)
		return path != output && filepath.Base(path) == filepath.Base(output) && errors.Is(err, fs.ErrNotExist)
	}
	for _, f := range l.Files {
		for _, path := range f.Paths {
			// The output itself is not listed, unless it had another name.
			if statErr == nil && f.Inode == st.Ino && isOther(string(path)) {
				return &OtherNameError{output, string(path)}
			}
		}
	}
	for _, path := range named {
		// The list covers every other file of the job: criu has seen the output by another name.
		if isOther(path) && !l.covers(path) {
			return &OtherNameError{output, path}
		}
	}
	return nil
}
