package config

import (
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"cucriu/hooks/preflight"
)

const (
	// The driver counts a lock's timeout in whole milliseconds, and 0 tells it to wait for
	// ever.
	minDuration = time.Millisecond
	// This is far beyond any use, and still below the 49 days that the driver's 32 bits hold.
	maxDuration = 30 * 24 * time.Hour
)

// Validate checks whether c can be used. The error is an [*Error] that names the field as the
// file does.
func (c Config) Validate() error {
	for _, check := range []*Error{
		checkMap("gpus.map", c.GPUs.Map),
		checkOneOf("gpus.unmapped", c.GPUs.Unmapped, FillUnmapped, FailUnmapped),
		checkHosts(c.Hosts),
		checkLibrary(c.Driver.Library),
		checkPath("driver.root", c.Driver.Root),
		checkDuration("lock.timeout", c.Lock.Timeout),
		checkDuration("lock.try", c.Lock.Try),
		checkTry(c.Lock),
		checkDuration("checkpoint.timeout", c.Checkpoint.Timeout),
		checkOneOf("pages", c.Pages, Fast, ByCriu),
		checkOneOf("fast_lane.compress", c.FastLane.Compress, Uncompressed, Zstd, S2),
		checkOneOf("forked_children", c.ForkedChildren, ReleaseChildren, RefuseChildren),
		checkDuration("restore.timeout", c.Restore.Timeout),
		checkOneOf("restore.on_failure", c.Restore.OnFailure, KillOnFailure, LeaveOnFailure),
		checkForce(c.Force),
		checkOneOf("log.level", c.Log.Level, levels...),
		checkOneOf("log.format", c.Log.Format, Text, JSON),
		checkLogFile(c.Log.File),
		checkPath("run directory", c.RunDir),
	} {
		if check != nil {
			return check
		}
	}
	return nil
}

var levels = []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}

func invalid(field, remedy, cause string, args ...any) *Error {
	return &Error{Field: field, Cause: fmt.Sprintf(cause, args...), Remedy: remedy}
}

func checkMap(field string, rules []Rule) *Error {
	for i, r := range rules {
		if err := r.Validate(); err != nil {
			return invalid(entry(field, i), `write {from: …, to: …}, each a UUID (nvidia-smi -L), {pci: "0000:41:00.0"} or {index: 0}`, "%v", err)
		}
	}
	return nil
}

// hostName matches names and addresses of hosts, and names in ssh's configuration.
var hostName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:-]*$`)

func checkHosts(hosts map[string]Host) *Error {
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		field := "hosts." + name
		if !hostName.MatchString(name) {
			return invalid(field, "write it as for cucriu migrate --to, without a user", "%q is not a host name", name)
		}
		if err := checkMap(field+".map", hosts[name].Map); err != nil {
			return err
		}
	}
	return nil
}

func checkDuration(field string, d time.Duration) *Error {
	if d >= minDuration && d <= maxDuration {
		return nil
	}
	return invalid(field, fmt.Sprintf("give a duration from %v to %v, such as 10s or 2m", minDuration, maxDuration), "%v is out of range", d)
}

func checkTry(l Lock) *Error {
	if l.Try <= l.Timeout {
		return nil
	}
	return invalid("lock.try", "give a shorter try or a longer timeout", "one try of %v is longer than the whole lock.timeout of %v", l.Try, l.Timeout)
}

func checkForce(names []string) *Error {
	for i, name := range names {
		if !slices.Contains(preflight.Forceable(), name) {
			return invalid(entry("force", i), "use some of "+strings.Join(preflight.Forceable(), ", "), "%q cannot be forced", name)
		}
	}
	return nil
}

func checkOneOf[T comparable](field string, value T, allowed ...T) *Error {
	if slices.Contains(allowed, value) {
		return nil
	}
	var names []string
	for _, a := range allowed {
		names = append(names, strings.ToLower(fmt.Sprint(a)))
	}
	return invalid(field, "use "+strings.Join(names, " or "), "unknown value %q", fmt.Sprint(value))
}

// checkLibrary accepts a bare file name, because the loader looks it up as a soname. A relative
// path would mean a different file in each working directory.
func checkLibrary(library string) *Error {
	const field = "driver.library"
	switch {
	case strings.ContainsRune(library, '/'):
		return checkPath(field, library)
	case library == "" || library == "." || library == "..":
		return invalid(field, "give its soname, such as libcuda.so.1, or its absolute path", "%q does not name a library", library)
	}
	return checkText(field, library)
}

func checkLogFile(file string) *Error {
	switch {
	case file == "":
		return nil
	case strings.HasSuffix(file, "/"):
		return invalid("log.file", "name a file in it", "%q is a directory", file)
	}
	return checkPath("log.file", file)
}

// checkPath refuses relative paths: CRIU chooses the directory in which the hook runs.
func checkPath(field, path string) *Error {
	if err := checkText(field, path); err != nil || filepath.IsAbs(path) {
		return err
	}
	return invalid(field, "give an absolute path: CRIU chooses the working directory of the hook", "%q is not an absolute path", path)
}

// checkText refuses a NUL, where the system would cut the text short, and other control
// characters, which would break the lines of a log.
func checkText(field, text string) *Error {
	if strings.ContainsFunc(text, unicode.IsControl) {
		return invalid(field, "remove it", "%q contains a control character", text)
	}
	return nil
}
