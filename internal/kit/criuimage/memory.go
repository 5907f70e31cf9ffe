package criuimage

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/pagemap"
)

// ParentName is the name of the directory in which criu looks for memory that is the same in an
// earlier dump.
const ParentName = "parent"

// Match lists the files of images that match a pattern, and after them those of their parent.
func Match(dir, pattern string) ([]string, error) {
	files, err := durable.Match(dir, pattern)
	parents, parentErr := durable.Match(filepath.Join(dir, ParentName), pattern)
	if errors.Is(parentErr, os.ErrNotExist) { // it has none
		parentErr = nil
	}
	return append(files, parents...), errors.Join(err, parentErr)
}

func readPagemap(dir, name string) (pagemap.Map, error) {
	f, err := open(dir, name)
	if err != nil {
		return pagemap.Map{}, err
	}
	defer f.Close()
	m, err := pagemap.Read(f)
	if err != nil {
		return pagemap.Map{}, damaged(dir, name, err)
	}
	return m, nil
}

// pagesOf returns the images with memory that a pagemap names. It refuses files of pages that are too
// short: criu waits forever for what is missing there.
func pagesOf(dir, name string) ([]string, error) {
	m, err := readPagemap(dir, name)
	if errors.Is(err, pagemap.ErrUnknown) {
		return nil, nil // criu judges it itself
	}
	if err != nil {
		return nil, err
	}
	names, err := checkPages(dir, ".", m)
	if err != nil || m.ParentBytes() == 0 {
		return names, err
	}
	name = path.Join(ParentName, name)
	if m, err = readPagemap(dir, name); err != nil {
		return nil, err
	}
	parent, err := checkPages(dir, ParentName, m)
	return append(append(names, name), parent...), err
}

func checkPages(dir, sub string, m pagemap.Map) ([]string, error) {
	want := m.Bytes()
	if want == 0 {
		return nil, nil
	}
	name := path.Join(sub, m.PagesName())
	info, err := os.Stat(filepath.Join(dir, name))
	if err != nil {
		return nil, missing(dir, name, err)
	}
	if info.Size() < want {
		return nil, damaged(dir, name, fmt.Errorf("it has %d bytes, but its pagemap needs %d", info.Size(), want))
	}
	return []string{name}, nil
}
