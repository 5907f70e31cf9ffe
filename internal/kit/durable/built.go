package durable

import (
	"errors"
	"io/fs"
	"os"
)

// Built is a file that the build has put into this program, in its folder built.
type Built struct {
	In   fs.FS
	Name string
}

// Read returns the file. A build without a C compiler has none.
func (b Built) Read() ([]byte, error) {
	data, err := fs.ReadFile(b.In, "built/"+b.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("this cucriu was built without it")
	}
	return data, err
}

// Place writes the file to a path where it is to stay as it is, unless it is there.
func (b Built) Place(path string, mode os.FileMode) error {
	data, err := b.Read()
	if err != nil {
		return err
	}
	return WriteNew(path, data, mode)
}
