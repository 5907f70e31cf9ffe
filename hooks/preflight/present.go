package preflight

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"cucriu/hooks/image"
)

// PresentFindings refuses a directory that holds no image.
func PresentFindings(dir string) Findings {
	const remedy = "name the directory of an image"
	refuse := func(err error) Findings {
		if errors.Is(err, os.ErrPermission) {
			return Findings{found(FindingImage, err, "run as root")}
		}
		return Findings{found(FindingImage, err, remedy)}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return refuse(fmt.Errorf("image directory: %w", err))
	}
	if len(entries) == 0 {
		return refuse(fmt.Errorf("image directory %s is empty", dir))
	}
	for _, name := range []string{"inventory.img", image.ManifestName} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			return nil
		}
	}
	return refuse(fmt.Errorf("neither an image of criu (inventory.img) nor a manifest of cucriu is in %s", dir))
}

// DamagedFinding refuses an image for what is wrong with its files.
func DamagedFinding(err error) Finding { return found(FindingImage, err, anotherImage) }
