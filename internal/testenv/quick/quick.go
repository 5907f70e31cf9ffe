// Package quick chooses the tests of a package that `make test` runs, and those that `make faults` runs.
package quick

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
)

// variable says which tests of a package with a [file] are run, unless -run says it: "quick", those that
// the file names, as `make test` does, or "others", as `make faults` does. Without it all are run.
const variable = "CUCRIU_TESTS"

// file names the quick tests of a package, one in a line, as TestName or TestName/subtest; or those that are not
// quick, with "-" before each. What follows "#" is a comment. All tests of a package without it are quick.
const file = "quick.txt"

// Choose sets the flags of this test binary, in its TestMain, to the tests that [variable] names.
func Choose() error {
	which := os.Getenv(variable)
	flag.Parse()
	if which == "" || flag.Lookup("test.run").Value.String() != "" {
		return nil
	}
	quick, err := os.ReadFile(file)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return err
	}
	named, others := Names(string(quick))
	switch {
	case which == "quick" && missing:
		return nil
	case which == "quick" && others != nil:
		return flag.Set("test.skip", Exactly(others...))
	case which == "quick":
		return flag.Set("test.run", Exactly(named...))
	case which == "others" && (missing || others != nil):
		return flag.Set("test.run", Exactly(others...))
	case which == "others":
		return flag.Set("test.skip", Exactly(named...))
	}
	return fmt.Errorf("%s=%s is neither quick nor others", variable, which)
}

// Names returns the names in a file, without and with "-".
func Names(quick string) (named, others []string) {
	for line := range strings.Lines(quick) {
		name, _, _ := strings.Cut(line, "#")
		if name = strings.TrimSpace(name); strings.HasPrefix(name, "-") {
			others = append(others, name[1:])
		} else if name != "" {
			named = append(named, name)
		}
	}
	return named, others
}

// Exactly returns the pattern for go test's -run and -skip that matches the named tests, or none.
func Exactly(tests ...string) string {
	var patterns []string
	for _, name := range tests {
		patterns = append(patterns, "^"+strings.ReplaceAll(regexp.QuoteMeta(name), "/", "$/^")+"$")
	}
	return cmp.Or(strings.Join(patterns, "|"), "^$")
}
