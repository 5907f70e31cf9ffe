package preflight

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// allocatorSetting returns the value of a key in a setting such as
// "expandable_segments:True,max_split_size_mb:128". PyTorch uses the last one.
func allocatorSetting(text, key string) string {
	var found string
	for setting := range strings.SplitSeq(text, ",") {
		if name, value, ok := strings.Cut(setting, ":"); ok && strings.TrimSpace(name) == key {
			found = strings.TrimSpace(value)
		}
	}
	return found
}

// getenv finds a variable in an environment as the C function does: the first one counts.
func getenv(environment []string, name string) (value string, found bool) {
	for _, variable := range environment {
		if value, found := strings.CutPrefix(variable, name+"="); found {
			return value, true
		}
	}
	return "", false
}

// fileMentions reports whether a file that a process has mapped contains a text. It returns
// false for a file that cannot be read.
func fileMentions(pid int, mapping *procfs.ProcMap, text string) bool {
	file, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "map_files",
		strconv.FormatUint(uint64(mapping.StartAddr), 16)+"-"+strconv.FormatUint(uint64(mapping.EndAddr), 16)))
	if err != nil {
		return false
	}
	defer file.Close()
	const most = 64 << 20 // PyTorch's libraries have a few MiB
	content, err := io.ReadAll(io.LimitReader(file, most))
	return err == nil && bytes.Contains(content, []byte(text))
}
