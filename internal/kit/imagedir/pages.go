package imagedir

import (
	"errors"
	"fmt"
	"path/filepath"

	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/pages"
)

// PageNames returns the names of all page files.
func (m Manifest) PageNames() map[string]bool {
	names := make(map[string]bool)
	for _, p := range m.Processes {
		if p.Pages != nil {
			for _, name := range p.Pages.Names(p.PID) {
				names[name] = true
			}
		}
	}
	return names
}

// OpenPages opens the GPU state of all processes of an image. It refuses files that are not
// what the dump wrote, as far as it can tell without reading all of them.
func (m Manifest) OpenPages(dir string) ([]*pages.Reader, error) {
	var all []*pages.Reader
	for _, p := range m.Processes {
		if p.Pages == nil {
			continue
		}
		reader, err := m.OpenPagesOf(&p, dir)
		if err != nil {
			ClosePages(all)
			return nil, fmt.Errorf("the GPU state of process %d (%s): %w", p.PID, p.Name, err)
		}
		all = append(all, reader)
	}
	return all, nil
}

// OpenPagesOf opens the GPU state of one process, which has some.
func (m Manifest) OpenPagesOf(p *Process, dir string) (*pages.Reader, error) {
	if m.Base == "" {
		return pages.Open(dir, p.PID, p.Pages)
	}
	return pages.Open(dir, p.PID, p.Pages, m.Base)
}

// Complete is for a manifest that now lies where all of its pages are.
func (m *Manifest) Complete() {
	if m.Base != "" {
		m.Base, m.Version = "", GatedVersion // the version before
	}
}

// IsBased reports whether the image in a directory is complete only together with another one.
func IsBased(dir string) bool {
	m, err := ReadManifest(dir)
	return err == nil && m.Base != ""
}

// ClosePages closes what [Manifest.OpenPages] opened.
func ClosePages(readers []*pages.Reader) {
	for _, r := range readers {
		r.Close()
	}
}

// CheckPages fails if [Manifest.OpenPages] would fail.
func (m Manifest) CheckPages(dir string) error {
	readers, err := m.OpenPages(dir)
	ClosePages(readers)
	return err
}

// RemoveOtherPages removes the pages of an earlier dump into the same directory, whose manifest
// this one has replaced, and the checksums of criu's files, which criu is about to replace.
func (m Manifest) RemoveOtherPages(dir string) error {
	err := errors.Join(pages.RemoveExcept(dir, m.PageNames()), durable.Remove(filepath.Join(dir, SumsName)))
	if err != nil {
		return fmt.Errorf("remove the leftovers of an earlier dump: %w", err)
	}
	return nil
}
