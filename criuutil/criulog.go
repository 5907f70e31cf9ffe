package criuutil

import (
	"bufio"
	"io"
	"strings"
)

// harmless are errors that criu logs although nothing has failed.
var harmless = []string{"RLIMIT_NOFILE"} // without CAP_SYS_RESOURCE

// LogErrors returns the error lines of one of criu's logs, without their
// timestamps and without those that mean nothing, the last limit of them.
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
