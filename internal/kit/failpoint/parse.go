// Package failpoint makes steps go wrong for the tests, in programs that are built with
// -tags failpoint. A small language says which steps, and how:
//
//	dump.lock=kill
//	dump.freeze=error,dump.filling=kill-watcher+kill
//	dump.manifest=continue 41 42+run /tmp/script
package failpoint

import (
	"fmt"
	"strings"
)

// Action is what happens at a step.
type Action struct{ Verb, Argument string }

// verbs are the verbs, and whether they take an argument.
func verbs() map[string]bool {
	return map[string]bool{
		"error":        false, // the step fails
		"hang":         false, // the step waits until its deadline, and then fails
		"kill":         true,  // kill [PID]: kills this process or another one, and waits until it runs no more
		"kill-criu":    false, // the same for the criu that runs the hook
		"kill-watcher": false, // the same for the session's watcher
		"fill":         true,  // fill DIR: takes all the room in the small tmpfs that holds DIR
		"continue":     true,  // continue PID...: sends SIGCONT to those of these processes that exist
		"remove":       true,  // remove GLOB: removes files
		"run":          true,  // run PROGRAM: runs a program to its end, without failpoints
	}
}

// Parse reads points separated by commas. A point is a step, "=", and actions joined by
// "+". It returns the actions of each step, in their order.
func Parse(text string) (map[string][]Action, error) {
	points := make(map[string][]Action)
	if text == "" {
		return points, nil
	}
	for _, part := range strings.Split(text, ",") {
		step, actions, found := strings.Cut(part, "=")
		if !found || step == "" || step != strings.TrimSpace(step) || strings.ContainsAny(step, "/+") {
			return nil, fmt.Errorf("failpoint %q: want STEP=ACTION", part)
		}
		for _, text := range strings.Split(actions, "+") {
			verb, argument, _ := strings.Cut(text, " ")
			takes, known := verbs()[verb]
			if !known || !takes && text != verb || takes && argument == "" && text != "kill" {
				return nil, fmt.Errorf("failpoint %s: invalid action %q", step, text)
			}
			points[step] = append(points[step], Action{verb, argument})
		}
	}
	return points, nil
}
