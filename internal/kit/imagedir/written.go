package imagedir

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/pages"
)

// Written records the manifest and the GPU state that a dump has put into the image directory,
// so that [Written.CheckWhole] can tell at post-dump whether they are still there. Post-dump is
// where criu asks whether to end the job.
type Written struct {
	Dir      pages.FileID            `json:"dir"`
	Manifest string                  `json:"manifest"` // SHA-256
	Pages    map[string]pages.FileID `json:"pages"`    // by name
}

// NoteWritten records what a dump has written into the image directory dir: the manifest, and
// the GPU state.
func NoteWritten(dir string, state []*pages.Writer) (*Written, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("image directory: %w", err)
	}
	w := &Written{Dir: pages.Identify(info), Pages: make(map[string]pages.FileID)}
	if w.Manifest, err = manifestSum(dir); err != nil {
		return nil, err
	}
	for _, writer := range state {
		ids, err := writer.Identity()
		if err != nil {
			return nil, fmt.Errorf("GPU state: %w", err)
		}
		maps.Copy(w.Pages, ids)
	}
	return w, nil
}

func manifestSum(dir string) (string, error) {
	data, err := durable.ReadFile(manifestKind.Path(dir), manifestKind.Limit)
	if err != nil {
		return "", fmt.Errorf("manifest: %w", err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// CheckWhole fails if a part of the image in dir is missing or is not what was written, or if
// path, where the image will be looked for, leads to another directory. Then another program,
// such as a cleaner of temporary files, has worked in the directory. A streamed dump may have
// none of criu's images in it.
func (w *Written) CheckWhole(dir, path string, streamed bool) error {
	for _, name := range []string{dir, path} {
		info, err := os.Stat(name)
		if err != nil {
			return fmt.Errorf("image directory %s: %w", path, err)
		}
		if pages.Identify(info) != w.Dir {
			return fmt.Errorf("image directory %s was replaced during the dump", path)
		}
	}
	sum, err := manifestSum(dir)
	if err != nil {
		return err
	}
	if sum != w.Manifest {
		return fmt.Errorf("%s is not the one that this dump wrote", filepath.Join(path, ManifestName))
	}
	m, err := ReadManifest(dir)
	if err != nil {
		return err
	}
	for name, id := range w.Pages {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err == nil && pages.Identify(info) != id {
			err = errors.New("it is not the file that this dump wrote")
		}
		if err != nil {
			return fmt.Errorf("GPU state %s: %w", name, err)
		}
	}
	if err := m.CheckPages(dir); err != nil {
		return err
	}
	return m.checkImages(dir, streamed)
}

// checkImages fails if criu's images of the CUDA processes are not there.
func (m Manifest) checkImages(dir string, streamed bool) error {
	names := []string{"inventory.img", "pstree.img"}
	for _, p := range m.Processes {
		for _, kind := range []string{"core", "mm", "pagemap"} {
			names = append(names, fmt.Sprintf("%s-%d.img", kind, p.PID))
		}
	}
	for i, name := range names {
		var stat unix.Stat_t
		err := unix.Lstat(filepath.Join(dir, name), &stat)
		if errors.Is(err, unix.ENOENT) && i == 0 && streamed {
			return nil
		}
		if err != nil {
			return fmt.Errorf("criu's image %s: %w", name, err)
		}
	}
	return nil
}
