package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"cucriu/criuutil"
)

// timestamp matches the beginning of the lines that criu itself logs: the seconds since it
// started.
var timestamp = regexp.MustCompile(`^\(([0-9]+\.[0-9]+)\)`)

// stageSeconds returns how long criu waited for its action script in a stage, according to
// its log (-v4).
func stageSeconds(log, stage string) (float64, error) {
	data, err := os.ReadFile(log)
	if err != nil {
		return 0, err
	}
	begun, found := 0.0, false
	for line := range strings.Lines(string(data)) {
		match := timestamp.FindStringSubmatch(line)
		if match == nil {
			continue // a line of the script
		}
		at, err := strconv.ParseFloat(match[1], 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", log, err)
		}
		switch {
		case strings.Contains(line, "Running "+stage+" scripts"):
			found, begun = true, at
		case found && strings.Contains(line, "\t["): // the line that names the script
			begun = at
		case found:
			return at - begun, nil
		}
	}
	return 0, fmt.Errorf("%s does not show stage %s", log, stage)
}

// logExcerpt returns what a log says about a failure: criu's errors and the hook's
// messages.
func logExcerpt(log string) string {
	data, err := os.ReadFile(log)
	if err != nil {
		return err.Error()
	}
	var lines []string
	if failure := criuutil.ReadFailure(strings.NewReader(string(data))); failure.Cause != "" {
		lines = append([]string{failure.Cause}, failure.Further...)
	}
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, "level=") || strings.HasPrefix(line, "serial-hook:") || strings.HasPrefix(line, "cucriu-hook:") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return strings.Join(lines, "\n")
}
