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

// MatchedBytes returns how many bytes the files in a directory have whose names match a pattern, as far as they can be
// looked at.
func MatchedBytes(dir, pattern string) (bytes int64) {
	files, _ := Match(dir, pattern)
	for _, file := range files {
		if info, err := os.Stat(file); err == nil {
			bytes += info.Size()
		}
	}
	return bytes
}
