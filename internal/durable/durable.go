// Package durable writes files that must survive a crash of the host.
package durable

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// WriteJSON replaces the content of a file by a value as JSON. After a crash the file holds
// either the old content or the new, complete. Only its owner can read it.
func WriteJSON(path string, value any) error {
	data, err := json.MarshalIndent(value, "", "\t")
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if err := renameio.WriteFile(path, append(data, '\n'), 0o600, renameio.WithTempDir(dir)); err != nil {
		return err
	}
	return Sync(dir)
}

// Sync waits until a file, or the names in a directory, are on disk.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("fsync %s: %w", path, err)
	}
	return nil
}
