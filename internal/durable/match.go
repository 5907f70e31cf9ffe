package durable

import (
	"os"
	"path/filepath"
)

// Match returns the paths in a directory whose last part matches a pattern. Unlike that of [filepath.Glob],
// the directory may have any name.
func Match(dir, pattern string) (paths []string, err error) {
	if _, err := filepath.Match(pattern, ""); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		if is, _ := filepath.Match(pattern, entry.Name()); is {
			paths = append(paths, filepath.Join(dir, entry.Name()))
		}
	}
	return paths, err
}
