package criuutil

import (
	"bufio"
	"io"
	"regexp"
	"slices"
	"strings"
)

// Failure is what criu's log says of a failure.
type Failure struct {
	// Cause is the error that matters: the first one that is the reason for others. It is
	// empty if the log holds no error.
	Cause string
	// Place is where in criu's source the cause is, as in "(criu/tty.c:7)".
	Place string
	// Remedy says what to do about it. It is empty if we do not know.
	Remedy string
	// Further are the other errors in the order of the log, with their places in criu's source.
	Further []string
}

// errorLine matches an error in criu's log, with or without the time and the process before
// it: "(00.003124)     42: Error (criu/tty.c:7): text". An action script's errors look the same.
var errorLine = regexp.MustCompile(`^(?:\([0-9.]+\))?\s*(?:pie: )?(?:\d+: )?\s*Error (\([^)]*\)): (.*)$`)

// harmless matches errors that criu logs although nothing has failed.
var harmless = regexp.MustCompile(`RLIMIT_NOFILE` + // criu lacks CAP_SYS_RESOURCE
	`|Unable to detach` + // the process ended first
	`|cgroupd: recv req error`) // criu ends its own helper

// consequence matches errors that only follow from an earlier one.
var consequence = regexp.MustCompile(`^(Pre-dumping|Dumping|Restoring) FAILED` +
	`|^(Dump|Collect) .* \(pid: \d+\) failed with ` +
	`|^One of more action scripts failed|^Script .* exited|^Pre dump script failed|^Aborting restore due to ` +
	`|^\d+ (exited, status=|killed by signal)|^exited, status=|^killed by signal ` +
	`|^Can't (dump|cure) .*\(pid: \d+\)|^Killed by signal`)

// maxFurther limits [Failure.Further].
const maxFurther = 5

// ReadFailure finds in a log of criu what matters. An error that we know comes first, then the
// first one that has a cause of its own, then one that follows from others. Harmless ones do
// not count.
func ReadFailure(log io.Reader) Failure {
	type entry struct{ place, message string }
	var entries []entry
	scanner := bufio.NewScanner(log)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		match := errorLine.FindStringSubmatch(scanner.Text())
		if match == nil || harmless.MatchString(match[2]) {
			continue
		}
		e := entry{match[1], match[2]}
		if !slices.Contains(entries, e) {
			entries = append(entries, e)
		}
	}
	if len(entries) == 0 {
		return Failure{}
	}
	isKnown := func(e entry) bool { return Remedy(e.message) != "" }
	hasOwnCause := func(e entry) bool { return !consequence.MatchString(e.message) }
	cause := slices.IndexFunc(entries, isKnown)
	if cause < 0 {
		cause = max(0, slices.IndexFunc(entries, hasOwnCause))
	}
	failure := Failure{Cause: entries[cause].message, Place: entries[cause].place, Remedy: Remedy(entries[cause].message)}
	for i, e := range entries {
		if i != cause && !strings.HasSuffix(e.message, " FAILED.") { // criu's last line says nothing more
			failure.Further = append(failure.Further, e.place+": "+e.message)
		}
	}
	failure.Further = failure.Further[max(0, len(failure.Further)-maxFurther):]
	return failure
}
