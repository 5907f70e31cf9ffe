// Package preflight has the findings of the checks that cucriu makes before it touches anything:
// in a machine, in the processes of a job, or in an image. Each finding has a name, the process that
// it is about, and a remedy. Findings that are errors are refusals ([RefusedError]); the user can
// override some of them by their names.
//
// kinds.go lists all kinds of findings. docs/limits.md's table of them is generated from it.
package preflight
