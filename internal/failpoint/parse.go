// Package failpoint makes steps go wrong for the tests, in programs that are built
// with -tags failpoint. Its language says which, and how:
//
//	dump.lock=kill
//	dump.freeze=error,dump.filling=kill-watcher+kill
//	dump.manifest=continue 41 42+run /tmp/script
package failpoint

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Point is a step that is to go wrong.
type Point struct {
	Step    string
	Actions []Action // one after the other; at least one
}

// Action is what happens at a step.
type Action struct {
	Verb Verb
	PIDs []int  // of [Continue]; of [Kill] one, or none for the process that comes by
	Path string // of [Fill], [Remove] and [Run]
}

// Verb says what an action does.
type Verb string

// The verbs.
const (
	Error       Verb = "error"        // the step fails
	Hang        Verb = "hang"         // the step lasts until its deadline, and fails then
	Kill        Verb = "kill"         // kill [PID]: SIGKILL of this or another process, until it runs no more
	KillCriu    Verb = "kill-criu"    // the same of the criu that runs the hook
	KillWatcher Verb = "kill-watcher" // the same of the session's watcher
	Fill        Verb = "fill"         // fill DIR: takes all the room in the small tmpfs that holds DIR
	Continue    Verb = "continue"     // continue PID...: SIGCONT from outside to those of these processes that are there
	Remove      Verb = "remove"       // remove GLOB: removes files
	Run         Verb = "run"          // run PROGRAM: runs a program to its end, in which nothing goes wrong
)

// Parse reads points separated by commas; each is a step, "=", and actions joined by
// "+". An empty text has none.
func Parse(text string) ([]Point, error) {
	if text == "" {
		return nil, nil
	}
	var points []Point
	for _, part := range strings.Split(text, ",") {
		step, actions, found := strings.Cut(part, "=")
		if !found || step == "" || step != strings.TrimSpace(step) || strings.ContainsAny(step, "/+") {
			return nil, fmt.Errorf("failpoint %q: want STEP=ACTION", part)
		}
		point := Point{Step: step}
		for _, text := range strings.Split(actions, "+") {
			action, err := parseAction(text)
			if err != nil {
				return nil, fmt.Errorf("failpoint %s: action %q: %w", step, text, err)
			}
			point.Actions = append(point.Actions, action)
		}
		points = append(points, point)
	}
	return points, nil
}

func parseAction(text string) (Action, error) {
	verb, argument, _ := strings.Cut(text, " ")
	action := Action{Verb: Verb(verb)}
	var err error
	switch action.Verb {
	case Error, Hang, KillCriu, KillWatcher:
		if text != verb {
			return Action{}, fmt.Errorf("%s takes no argument", verb)
		}
	case Kill, Continue:
		action.PIDs, err = parsePIDs(argument)
		switch n := len(action.PIDs); {
		case err != nil:
			return Action{}, err
		case action.Verb == Kill && n > 1:
			return Action{}, fmt.Errorf("kill takes one process, not %d", n)
		case action.Verb == Continue && n == 0:
			return Action{}, errors.New("continue takes processes")
		}
	case Fill, Remove, Run:
		if argument == "" {
			return Action{}, fmt.Errorf("%s takes a path", verb)
		}
		action.Path = argument
	default:
		return Action{}, errors.New("there is no such action")
	}
	return action, nil
}

func parsePIDs(text string) ([]int, error) {
	var pids []int
	for _, field := range strings.Fields(text) {
		pid, err := strconv.Atoi(field)
		if err != nil || pid <= 0 {
			return nil, fmt.Errorf("%q is no process", field)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// At returns the actions of a step, in their order.
func At(points []Point, step string) []Action {
	var actions []Action
	for _, point := range points {
		if point.Step == step {
			actions = slices.Concat(actions, point.Actions)
		}
	}
	return actions
}
