// Package failpoint makes steps go wrong for the tests, in programs that are built with
// -tags failpoint. A small language says which steps, and how:
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
	Actions []Action // at least one; they happen in this order
}

// Action is what happens at a step.
type Action struct {
	Verb Verb
	PIDs []int  // for [Continue]; for [Kill] one, or none for the process that reaches the step
	Path string // for [Fill], [Remove] and [Run]
}

// Verb says what an action does.
type Verb string

// The verbs.
const (
	Error       Verb = "error"        // the step fails
	Hang        Verb = "hang"         // the step waits until its deadline, and then fails
	Kill        Verb = "kill"         // kill [PID]: kills this process or another one, and waits until it runs no more
	KillCriu    Verb = "kill-criu"    // the same for the criu that runs the hook
	KillWatcher Verb = "kill-watcher" // the same for the session's watcher
	Fill        Verb = "fill"         // fill DIR: takes all the room in the small tmpfs that holds DIR
	Continue    Verb = "continue"     // continue PID...: sends SIGCONT to those of these processes that exist
	Remove      Verb = "remove"       // remove GLOB: removes files
	Run         Verb = "run"          // run PROGRAM: runs a program to its end, without failpoints
)

// Parse reads points separated by commas. A point is a step, "=", and actions joined by
// "+". An empty text holds no points.
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
