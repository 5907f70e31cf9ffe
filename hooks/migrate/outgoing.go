package migrate

import (
	"os"
	"path/filepath"
	"slices"

	"cucriu/hooks/migrate/wire"
)

// outgoing is the files of one round.
type outgoing struct {
	files  []wire.File
	total  int64 // bytes
	opened []*os.File
}

func (o *outgoing) add(f wire.File) {
	o.files = append(o.files, f)
	o.total += f.Size
}

// open adds a file of this host.
func (o *outgoing) open(path, name string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	o.opened = append(o.opened, f)
	info, err := f.Stat()
	if err != nil {
		return err
	}
	o.add(wire.File{Name: name, Content: f, Size: info.Size()})
	return nil
}

// openDir adds the regular files of a directory.
func (o *outgoing) openDir(dir string, except []string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !entry.Type().IsRegular() || slices.Contains(except, entry.Name()) {
			continue
		}
		if err := o.open(filepath.Join(dir, entry.Name()), entry.Name()); err != nil {
			return err
		}
	}
	return nil
}

func (o *outgoing) close() {
	for _, f := range o.opened {
		f.Close()
	}
}
