package preflight

import "cucriu/hooks/image"

// DirectoryFindings refuses a directory that a dump cannot make its image directory.
func DirectoryFindings(dir string) Findings {
	if err := image.CheckVacant(dir); err != nil {
		return Findings{found(FindingImageDirectory, err, "name another directory")}
	}
	return nil
}
