package config

import (
	"fmt"
	"strings"
)

// Error says what is wrong with a configuration, where, and what to do about it.
type Error struct {
	Source string // the file, or the environment variable; empty for a Config made in code
	Line   int    // in the file; 0 if the error is about the whole file
	Field  string // such as lock.try; empty if the error is about no field
	Cause  string
	Remedy string
	Err    error // the system's error that caused this one, if any
}

// Error says where the fault is, what it is, and what to do about it.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("configuration: ")
	if e.Source != "" {
		b.WriteString(e.Source)
		if e.Line > 0 {
			fmt.Fprintf(&b, ":%d", e.Line)
		}
		b.WriteString(": ")
	}
	if e.Field != "" {
		b.WriteString(e.Field + ": ")
	}
	b.WriteString(e.Cause)
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if e.Remedy != "" {
		b.WriteString("; " + e.Remedy)
	}
	return b.String()
}

// Unwrap returns the system's error.
func (e *Error) Unwrap() error { return e.Err }
