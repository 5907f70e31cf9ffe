package nvrm

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Evidence is how it is known that what this package reads out of a driver's kernel module means what it says.
type Evidence int

const (
	// Unknown drivers may have other numbers and layouts.
	Unknown Evidence = iota
	// Compared drivers have the same numbers and layouts, by their open kernel modules. How their libcuda numbers and
	// duplicates its objects, and what their restores lose, was not measured: what is found may be believed, and that
	// something was not found may not.
	Compared
	// Measured drivers were asked about processes whose restores were tried.
	Measured
)

// releases are all that was measured and compared.
//
// Compared were, in each of the 57 releases of the open kernel modules from 570.86.15 to 595.45.04: the number of
// NV_ESC_RM_CONTROL and NVOS54_PARAMETERS; the numbers of the classes, commands, indices and flags in holdings.go and
// sharing.go; the parameters of these commands with the structures in them, and the lengths of their tables; and
// the first number of a client. All are the same, and so is the rule by which imported memory is counted. (Of what
// these headers have beside it, NV_FABRIC_MEMORY_ATTRS has changed in 580 and in 595.) Modules before 580 tell the address
// of memory only to the kernel, so sharers are not paired there.
var releases = map[Evidence][]string{
	Measured: {"580.159.04"},
	Compared: {
		"570.86.15", "570.86.16", "570.123.01", "570.123.06", "570.123.07", "570.123.10", "570.123.11", "570.123.14",
		"570.123.18", "570.123.19", "570.124.04", "570.124.06", "570.133.07", "570.133.20", "570.144", "570.148.08",
		"570.153.02", "570.158.01", "570.169", "570.172.08", "570.181", "570.190", "570.195.03", "570.207", "570.211.01",
		"575.51.02", "575.51.03", "575.57.08", "575.64", "575.64.03", "575.64.05",
		"580.65.06", "580.76.05", "580.82.07", "580.82.09", "580.94.02", "580.94.03", "580.94.06", "580.94.10", "580.94.11",
		"580.94.13", "580.94.16", "580.94.17", "580.94.18", "580.95.05", "580.105.08", "580.119.02", "580.126.09",
		"580.126.16", "580.126.18", "580.126.20", "580.142",
		"590.44.01", "590.48.01",
		"595.44.02", "595.44.03", "595.45.04",
	},
}

// EvidenceOf returns what is known of a driver, by its version. One between two of a branch that are known, of which the
// sources are not public, is taken for compared.
func EvidenceOf(version string) Evidence {
	for evidence, known := range releases {
		if slices.Contains(known, version) {
			return evidence
		}
	}
	branch, _, _ := strings.Cut(version, ".")
	var older, newer bool
	for _, known := range releases {
		for _, release := range known {
			if strings.HasPrefix(release, branch+".") {
				older = older || compareVersions(release, version) < 0
				newer = newer || compareVersions(release, version) > 0
			}
		}
	}
	if older && newer {
		return Compared
	}
	return Unknown
}

// compareVersions compares versions such as 570.169 and 570.86.15.
func compareVersions(a, b string) int {
	return slices.CompareFunc(strings.Split(a, "."), strings.Split(b, "."), func(a, b string) int {
		number := func(text string) int {
			n, err := strconv.Atoi(text)
			if err != nil {
				return -1
			}
			return n
		}
		return cmp.Compare(number(a), number(b))
	})
}
