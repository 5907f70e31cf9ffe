package durable

import (
	"encoding/json"
	"fmt"
	"os"
)

// ReadJSON reads a file that holds one value as JSON.
func ReadJSON(path string, value any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, value); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
