package files

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// LimitError says that a job's files are too large to be saved. Nothing was copied.
type LimitError struct {
	What    string // "files that are open for writing", or the directory
	Limit   int64
	Bytes   int64
	Largest []Large // the largest first
}

// Large is a file that counts for a limit.
type Large struct {
	Path    string
	Bytes   int64
	PID     int // of a process that has it open for writing; 0 if it is not known
	Process string
}

// Error names the largest files, and the processes that write them.
func (e *LimitError) Error() string {
	var named []string
	for _, large := range e.Largest {
		text := fmt.Sprintf("%v (%s", name(large.Path), size(large.Bytes))
		if large.PID != 0 {
			text += fmt.Sprintf(", written by process %d", large.PID)
			if large.Process != "" {
				text += ", " + large.Process
			}
		}
		named = append(named, text+")")
	}
	return fmt.Sprintf("%s hold %s, which is more than the limit of %s: the largest is %s",
		e.What, size(e.Bytes), size(e.Limit), strings.Join(named, ", then "))
}

// namedAtMost is how many files an error names.
const namedAtMost = 3

func checkLimit(what string, limit int64, files []Large) error {
	sum := int64(0)
	for _, f := range files {
		sum += f.Bytes
	}
	if sum <= limit {
		return nil
	}
	slices.SortStableFunc(files, func(a, b Large) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return &LimitError{What: what, Limit: limit, Bytes: sum, Largest: files[:min(namedAtMost, len(files))]}
}
