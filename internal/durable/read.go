package durable

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// ReadJSON reads a file that holds one value as JSON. It waits for no pipe. Unlike [ReadFile] it follows
// links, and leaves it to the kernel to say what cannot be read: callers tell that from invalid content.
func ReadJSON(path string, value any) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, value); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
