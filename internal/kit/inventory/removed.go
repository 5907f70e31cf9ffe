package inventory

import "golang.org/x/sys/unix"

// RemovedName is the name by which a process uses a file, and which was removed although the
// file has another one. A named semaphore is made like this, such as those of Python's
// multiprocessing with spawned processes.
type RemovedName struct {
	PID  int
	Path string // as the process sees it
	Link string // the file itself, below /proc/PID
}

// RemovedNames returns the removed names by which the tree uses files.
func (t *Tree) RemovedNames() (removed []RemovedName) {
	linked, _ := t.Unlinked()
	for _, f := range linked {
		removed = append(removed, RemovedName{PID: f.Of.PID, Path: f.Name(), Link: f.Path()})
	}
	return removed
}

// RemovedNamesNow is [Tree.RemovedNames] of the tree below root as it is by now. A dump asks it again when the tree is
// parked, because the stop under which the truth was read does not hold a process: until it is parked, anybody's SIGCONT
// lets it run, and a name that it removes then would make criu fail. Nothing else of the truth is asked again: what a
// process has come to hold of the driver is looked for in each, and a setting that is missed costs that setting only.
func RemovedNamesNow(root int) ([]RemovedName, error) {
	now, err := Truth(root)
	if err != nil {
		return nil, err
	}
	if err := now.Read(); err != nil {
		return nil, err
	}
	return now.RemovedNames(), nil
}

// Unlinked returns the files that the tree uses by removed names while they have others, and the largest of
// those that have no name at all: criu puts such a file into the image.
func (t *Tree) Unlinked() (linked []*File, largest *File) {
	var files []*File
	for _, p := range t.Processes {
		files = append(files, p.Open()...)
		for _, m := range p.Mapped() {
			files = append(files, m.File)
		}
	}
	for _, f := range files {
		if !f.Unlinked() {
			continue
		}
		switch kind := f.Kind(); {
		case f.Stat().Nlink > 0 && kind != unix.S_IFDIR:
			linked = append(linked, f)
		case kind == unix.S_IFREG && (largest == nil || f.Stat().Size > largest.Stat().Size):
			largest = f
		}
	}
	return linked, largest
}
