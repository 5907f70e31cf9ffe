package criuutil

import (
	"fmt"
	"regexp"
	"strconv"
)

// Version is the beginning of a version number: 4.2 for criu 4.2.1, 6.16 for kernel
// 6.16.3-arch1, 580.159 for a driver.
type Version struct{ Major, Minor int }

// Before reports whether the version is older than major.minor.
func (v Version) Before(major, minor int) bool {
	return v.Major < major || v.Major == major && v.Minor < minor
}

var leadingVersion = regexp.MustCompile(`^([0-9]{1,9})(?:\.([0-9]{1,9}))?`)

// ParseVersion reads the version at the beginning of a text.
func ParseVersion(text string) (Version, error) {
	match := leadingVersion.FindStringSubmatch(text)
	if match == nil {
		return Version{}, fmt.Errorf("%q does not begin with a version", text)
	}
	var v Version
	v.Major, _ = strconv.Atoi(match[1]) // at most nine digits
	v.Minor, _ = strconv.Atoi(match[2]) // empty if there is none, which gives 0
	return v, nil
}
