package durable

import (
	"encoding/json"
	"fmt"
)

// maxJSONBytes is far above what any of these files has.
const maxJSONBytes = 256 << 20

// ReadJSON reads a file that holds one value as JSON, as [ReadFile] does.
func ReadJSON(path string, value any) error {
	data, err := ReadFile(path, maxJSONBytes)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, value); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
