package criuutil

import (
	"bufio"
	"io"
	"strings"
)

// harmless lists words that mark errors which criu logs although nothing has failed.
var harmless = []string{"RLIMIT_NOFILE"} // criu lacks CAP_SYS_RESOURCE

// LogErrors returns the last error lines of a criu log, at most limit of them, without
// their timestamps. It leaves out harmless ones.
func LogErrors(log io.Reader, limit int) []string {
	var lines []string
	scanner := bufio.NewScanner(log)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		_, message, found := strings.Cut(scanner.Text(), "Error (")
		if !found || containsAny(message, harmless) {
			continue
		}
		lines = append(lines, "("+message)
	}
	return lines[max(0, len(lines)-limit):]
}

func containsAny(text string, parts []string) bool {
	for _, part := range parts {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}
