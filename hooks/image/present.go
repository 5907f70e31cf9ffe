package image

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/imagedir"
)

// PresentFindings refuses a directory that holds no image.
func PresentFindings(dir string) preflight.Findings {
	remedy := "name an image directory"
	dir, err := filepath.Abs(dir)
	if err != nil {
		return preflight.Findings{preflight.New(preflight.FindingImage, "the current directory was removed or replaced", `cd "$PWD"`)}
	}
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, os.ErrNotExist) && imagedir.IsBeingMade(dir):
		err, remedy = fmt.Errorf("image directory %s does not exist yet: a dump into it is at work", dir), "wait until it is over"
	case errors.Is(err, os.ErrNotExist):
		err = fmt.Errorf("image directory %s does not exist", dir)
	case errors.Is(err, unix.ENOTDIR):
		err = fmt.Errorf("image directory %s is not a directory", dir)
	case errors.Is(err, os.ErrPermission):
		remedy = "run as root"
		fallthrough
	case err != nil:
		err = fmt.Errorf("image directory: %w", err)
	case len(entries) == 0:
		err = fmt.Errorf("image directory %s is empty", dir)
	case !imagedir.IsAmong(entries):
		err = fmt.Errorf("neither a criu image (inventory.img) nor a cucriu manifest is in %s", dir)
	default:
		return nil
	}
	return preflight.Findings{preflight.New(preflight.FindingImage, err.Error(), remedy)}
}
