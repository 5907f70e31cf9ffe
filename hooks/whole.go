package hooks

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/criuutil/pages"
)

// Written is what a dump has put into the image directory, noted when it was whole:
// at post-dump, where criu asks whether to end the job, it must all still be there.
type Written struct {
	Dir      FileID            `json:"dir"`
	Manifest string            `json:"manifest"` // SHA-256
	Pages    map[string]FileID `json:"pages"`    // by name
}

// noteWritten notes what the dump has written into the image directory.
func (d *dump) noteWritten() error {
	info, err := os.Stat(d.imageDir)
	if err != nil {
		return fmt.Errorf("image directory: %w", err)
	}
	w := &Written{Dir: identify(info), Pages: make(map[string]FileID)}
	if w.Manifest, err = manifestSum(d.imageDir); err != nil {
		return err
	}
	for _, t := range d.inLane() {
		names := t.member.Pages.Listing.Names(t.member.ImagePID)
		for i, f := range t.lane.writer.Files() {
			info, err := f.Stat()
			if err != nil {
				return fmt.Errorf("GPU state: %w", err)
			}
			w.Pages[names[i]] = identify(info)
		}
	}
	d.session.Written = w
	return d.session.save()
}

func manifestSum(dir string) (string, error) {
	data, err := readPlain(filepath.Join(dir, ManifestName), maxManifestBytes)
	if err != nil {
		return "", fmt.Errorf("manifest: %w", err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// checkWhole fails if something of the image is not there any more as it was
// written, or is not where the image will be looked for: a cleaner of temporary
// files, or another program, was at work in the directory.
func (s *Session) checkWhole(criu *criuutil.Criu, dir string) error {
	w := s.Written
	if w == nil {
		return nil // an earlier version began the dump
	}
	for _, path := range []string{dir, s.ImageDir} {
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("image directory %s: %w", s.ImageDir, err)
		}
		if identify(info) != w.Dir {
			return fmt.Errorf("image directory %s is another one than at the beginning of the dump", s.ImageDir)
		}
	}
	sum, err := manifestSum(dir)
	if err != nil {
		return err
	}
	if sum != w.Manifest {
		return fmt.Errorf("%s is not the one that this dump has written", filepath.Join(s.ImageDir, ManifestName))
	}
	for i := range s.Members {
		if err := s.checkPages(dir, &s.Members[i]); err != nil {
			return fmt.Errorf("the GPU state of process %d (%s): %w", s.Members[i].PID, s.Members[i].Name, err)
		}
	}
	return s.checkImages(criu, dir)
}

// checkPages compares the files that have the names of a member's GPU state with
// those that were written, which the watcher holds.
func (s *Session) checkPages(dir string, m *Member) error {
	listing := m.droppedPages()
	if listing == nil {
		return nil
	}
	files, err := pages.OpenFiles(dir, m.ImagePID, listing)
	if err != nil {
		return err
	}
	defer closeFiles(files)
	for i, name := range listing.Names(m.ImagePID) {
		info, err := files[i].Stat()
		if err != nil {
			return err
		}
		if identify(info) != s.Written.Pages[name] {
			return fmt.Errorf("%s is not the file that this dump has written", name)
		}
	}
	return pages.Check(files, m.ImagePID, listing)
}

// checkImages fails if criu's images of the CUDA processes are not there.
func (s *Session) checkImages(criu *criuutil.Criu, dir string) error {
	names := []string{"inventory.img", "pstree.img"}
	for _, m := range s.Members {
		for _, kind := range []string{"core", "mm", "pagemap"} {
			names = append(names, fmt.Sprintf("%s-%d.img", kind, m.ImagePID))
		}
	}
	for i, name := range names {
		var stat unix.Stat_t
		err := unix.Lstat(filepath.Join(dir, name), &stat)
		if errors.Is(err, unix.ENOENT) && i == 0 && (criu.RPC || criu.PagesElsewhere) {
			return nil // a streamed dump has no images in its folder
		}
		if err != nil {
			return fmt.Errorf("criu's image %s: %w", name, err)
		}
	}
	return nil
}
