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

	"cucriu/hooks/gpumap"
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
		c.GPUs.check(),
		checkHosts(c.Hosts),
		checkLibrary(c.Driver.Library),
		checkPath("driver.root", c.Driver.Root),
		checkDuration("lock.timeout", c.Lock.Timeout),
		checkDuration("lock.try", c.Lock.Try),
		checkTry(c.Lock),
		checkDuration("checkpoint.timeout", c.Checkpoint.Timeout),
		checkOneOf("pages", c.Pages, Fast, ByCriu),
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

func (g GPUs) check() *Error {
	if err := checkMap("gpus.map", g.Map); err != nil {
		return err
	}
	return checkOneOf("gpus.unmapped", g.Unmapped, gpumap.FillUnmapped, gpumap.FailUnmapped)
}

func checkMap(field string, rules []gpumap.Rule) *Error {
	for i, r := range rules {
		if err := r.Validate(); err != nil {
			return &Error{
				Field: ruleField(field, i), Cause: err.Error(),
				Remedy: `write {from: …, to: …}, each a UUID (nvidia-smi -L), {pci: "0000:41:00.0"} or {index: 0}`,
			}
		}
	}
	return nil
}

// ruleField returns the name that errors use for an entry of a map.
func ruleField(field string, i int) string { return fmt.Sprintf("%s[%d]", field, i) }

// hostName matches names and addresses of hosts, and names in ssh's configuration.
var hostName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:-]*$`)

func checkHosts(hosts map[string]Host) *Error {
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		field := join("hosts", name)
		if !hostName.MatchString(name) {
			return &Error{Field: field, Cause: fmt.Sprintf("%q is not the name of a host", name), Remedy: "write it as cucriu migrate --to has it, without a user"}
		}
		if err := checkMap(join(field, "map"), hosts[name].Map); err != nil {
			return err
		}
	}
	return nil
}

func checkDuration(field string, d time.Duration) *Error {
	if d >= minDuration && d <= maxDuration {
		return nil
	}
	return &Error{
		Field: field, Cause: fmt.Sprintf("%v is out of range", d),
		Remedy: fmt.Sprintf("give a duration from %v to %v, such as 10s or 2m", minDuration, maxDuration),
	}
}

func checkTry(l Lock) *Error {
	if l.Try <= l.Timeout {
		return nil
	}
	return &Error{
		Field: "lock.try", Cause: fmt.Sprintf("one try of %v is longer than the whole lock.timeout of %v", l.Try, l.Timeout),
		Remedy: "give a shorter try or a longer timeout",
	}
}

func checkForce(names []string) *Error {
	for _, name := range names {
		if err := checkForceable(name); err != nil {
			return &Error{Field: "force", Cause: err.Error(), Remedy: forceRemedy()}
		}
	}
	return nil
}

func checkForceable(name string) error {
	if !slices.Contains(preflight.Forceable(), name) {
		return fmt.Errorf("%q cannot be forced", name)
	}
	return nil
}

func forceRemedy() string { return "name some of " + strings.Join(preflight.Forceable(), ", ") }

func checkOneOf[T comparable](field string, value T, allowed ...T) *Error {
	var names []string
	for _, a := range allowed {
		if value == a {
			return nil
		}
		names = append(names, strings.ToLower(fmt.Sprint(a)))
	}
	return &Error{
		Field: field, Cause: fmt.Sprintf("%q is not known here", fmt.Sprint(value)),
		Remedy: "use " + strings.Join(names, " or "),
	}
}

// checkLibrary accepts a bare file name, because the loader looks it up as a soname. A relative
// path would mean a different file in each working directory.
func checkLibrary(library string) *Error {
	const field = "driver.library"
	bare := !strings.ContainsRune(library, '/')
	if bare && library != "" && library != "." && library != ".." {
		return checkText(field, library)
	}
	if bare {
		return &Error{
			Field: field, Cause: fmt.Sprintf("%q names no library", library),
			Remedy: "give its soname, as libcuda.so.1, or its absolute path",
		}
	}
	return checkPath(field, library)
}

func checkLogFile(file string) *Error {
	if file == "" {
		return nil
	}
	if strings.HasSuffix(file, "/") {
		return &Error{Field: "log.file", Cause: fmt.Sprintf("%q is a directory", file), Remedy: "name a file in it"}
	}
	return checkPath("log.file", file)
}

// checkPath refuses relative paths: CRIU chooses the directory in which the hook runs.
func checkPath(field, path string) *Error {
	if err := checkText(field, path); err != nil {
		return err
	}
	if filepath.IsAbs(path) {
		return nil
	}
	return &Error{
		Field: field, Cause: fmt.Sprintf("%q is not an absolute path", path),
		Remedy: "give the path from / on: the hook runs in a working directory of CRIU's choice",
	}
}

// checkText refuses a NUL, where the system would cut the text short, and other control
// characters, which would break the lines of a log.
func checkText(field, text string) *Error {
	if strings.ContainsFunc(text, unicode.IsControl) {
		return &Error{
			Field: field, Cause: fmt.Sprintf("%q holds a control character", text),
			Remedy: "remove it",
		}
	}
	return nil
}
