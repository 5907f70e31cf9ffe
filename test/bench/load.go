package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

const (
	mib = int64(1) << 20
	gib = int64(1) << 30
)

// load is what a case dumps: the processes of one tree, each with the same amount of GPU
// memory.
type load struct {
	processes int
	each      int64 // bytes, whole MiB
}

func (l load) bytes() int64 { return int64(l.processes) * l.each }

// String returns the load as the command line has it: 4x256MiB.
func (l load) String() string { return fmt.Sprintf("%dx%s", l.processes, size(l.each)) }

// title returns the load as tables have it.
func (l load) title() string { return fmt.Sprintf("%d × %s", l.processes, spaced(l.each)) }

var loadPattern = regexp.MustCompile(`^([1-9][0-9]{0,1})x([1-9][0-9]{0,5})(MiB|GiB)$`)

// parseLoads reads a list of loads. It may be empty.
func parseLoads(text string) ([]load, error) {
	var loads []load
	for field := range strings.SplitSeq(text, ",") {
		if field == "" && text == "" {
			break
		}
		match := loadPattern.FindStringSubmatch(field)
		if match == nil {
			return nil, fmt.Errorf("--cases: %q is no case: write 4x256MiB or 1x16GiB", field)
		}
		processes, _ := strconv.Atoi(match[1]) // only a few digits
		each, _ := strconv.ParseInt(match[2], 10, 64)
		each *= map[string]int64{"MiB": mib, "GiB": gib}[match[3]]
		if each < minEach {
			return nil, fmt.Errorf("--cases: %q: each process needs %s at least", field, size(minEach))
		}
		loads = append(loads, load{processes, each})
	}
	return loads, nil
}

// size formats a number of bytes, exactly if it is whole MiB: 256MiB, 16GiB.
func size(bytes int64) string { return strings.ReplaceAll(spaced(bytes), " ", "") }

func spaced(bytes int64) string {
	if bytes%gib == 0 {
		return fmt.Sprintf("%d GiB", bytes/gib)
	}
	return fmt.Sprintf("%d MiB", bytes/mib)
}
