package image

import (
	"fmt"

	"cucriu/internal/pages"
)

// PageFiles returns how many page files the image has.
func (m Manifest) PageFiles() int {
	n := 0
	for _, p := range m.Processes {
		if p.Pages != nil {
			n += p.Pages.Files()
		}
	}
	return n
}

// OpenPages opens the GPU state of all processes of an image. It refuses files that are not
// what the dump wrote, as far as it can tell without reading all of them.
func (m Manifest) OpenPages(store pages.Store) ([]pages.Input, error) {
	var all []pages.Input
	for _, p := range m.Processes {
		if p.Pages == nil {
			continue
		}
		input, err := store.Open(p.PID, p.Pages)
		if err != nil {
			ClosePages(all)
			return nil, fmt.Errorf("the GPU state of process %d (%s): %w", p.PID, p.Name, err)
		}
		all = append(all, input)
	}
	return all, nil
}

// ClosePages closes what [Manifest.OpenPages] opened.
func ClosePages(inputs []pages.Input) {
	for _, input := range inputs {
		input.Close()
	}
}

// CheckPages fails if [Manifest.OpenPages] would fail.
func (m Manifest) CheckPages(store pages.Store) error {
	inputs, err := m.OpenPages(store)
	ClosePages(inputs)
	return err
}

// RemoveOtherPages removes the pages of an earlier dump into the same directory, whose manifest
// this one has replaced.
func (m Manifest) RemoveOtherPages(dir string) error {
	keep := make(map[string]bool)
	for _, p := range m.Processes {
		if p.Pages != nil {
			for _, name := range p.Pages.Names(p.PID) {
				keep[name] = true
			}
		}
	}
	if err := (pages.Files{Dir: dir}).RemoveExcept(keep); err != nil {
		return fmt.Errorf("remove the GPU state of an earlier dump: %w", err)
	}
	return nil
}
