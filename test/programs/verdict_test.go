package programs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// outcome is what became of a program.
type outcome string

const (
	works        outcome = "works"         // dumped, ended, restored, and right to its end
	refused      outcome = "refused"       // before anything was touched, and right to its end
	failed       outcome = "failed"        // the dump failed, and it was right to its end all the same
	lost         outcome = "LOST"          // anything else
	notInstalled outcome = "not installed" // here, so nothing was measured
	notAvailable outcome = "not available" // cucriu lacks what the row needs
)

// exitRefused is cucriu's exit status for what it refuses before anything is touched.
const exitRefused = 3

// evidence is what was seen of a program, in the order in which it was seen.
type evidence struct {
	missing     string // the library that it lacks
	unavailable string // what cucriu lacks
	neverRan    string // why it did not come to be dumped

	foretold    []string // the findings of cucriu check that refuse a dump
	dumpStatus  int
	dumpOutput  string
	left        []int // processes of the job that the dump has left
	stepsBefore int   // when the dump had ended

	restoreStatus int
	restoreOutput string

	unfinished string // why it did not come to its end
	stepsAfter int
	differs    string // how its results differ from what they must be
}

// judge says what became of a program, and why.
func judge(e evidence) (outcome, string) {
	harm := ""
	switch {
	case e.unfinished != "":
		harm = e.unfinished
	case e.differs != "":
		harm = e.differs
	}
	foretold := strings.Join(e.foretold, ", ")
	switch {
	case e.missing != "":
		return notInstalled, e.missing
	case e.unavailable != "":
		return notAvailable, e.unavailable
	case e.neverRan != "":
		return lost, e.neverRan
	case e.dumpStatus == exitRefused && harm == "":
		return refused, foretold
	case e.dumpStatus == exitRefused:
		return lost, fmt.Sprintf("the dump was refused (%s), and yet: %s", foretold, harm)
	case e.dumpStatus != 0 && harm == "":
		return failed, firstLine(e.dumpOutput)
	case e.dumpStatus != 0:
		return lost, fmt.Sprintf("the dump failed (%s), and: %s", firstLine(e.dumpOutput), harm)
	case len(e.left) > 0:
		return lost, fmt.Sprintf("dumped, and processes %v are still there", e.left)
	case e.restoreStatus != 0:
		return lost, fmt.Sprintf("the restore failed (exit status %d): %s", e.restoreStatus, firstLine(e.restoreOutput))
	case harm != "":
		return lost, "after the restore: " + harm
	case e.stepsAfter <= e.stepsBefore:
		return lost, "it had come to its end before it was dumped: nothing is proved"
	}
	return works, ""
}

// wrong says in what an outcome is not the expected one; empty if it is.
func wrong(p program, got outcome, e evidence) string {
	switch {
	case got == notInstalled:
		return ""
	case got != p.want:
		return fmt.Sprintf("%s, want %s", got, p.want)
	case got == refused && !slices.Contains(e.foretold, p.finding):
		return fmt.Sprintf("refused for %v, want %s", e.foretold, p.finding)
	case got == works && len(e.foretold) > 0:
		return fmt.Sprintf("it works although cucriu check said that it would be refused for %v", e.foretold)
	}
	return ""
}

// firstLine is the first line of what a command printed that is no progress.
func firstLine(output string) string {
	for line := range strings.Lines(output) {
		if line = strings.TrimSpace(line); strings.Contains(strings.ToLower(line), "error") {
			return line
		}
	}
	line, _, _ := strings.Cut(strings.TrimSpace(output), "\n")
	return line
}

// differences names the first result that is not as in an undisturbed run.
func differences(got, want []string) string {
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got) || i < len(want) && want[i] < got[i]:
			return fmt.Sprintf("%q is missing (%d results, an undisturbed run has %d)", want[i], len(got), len(want))
		case i >= len(want) || got[i] < want[i]:
			return fmt.Sprintf("%q is not what an undisturbed run prints (%d results, it has %d)", got[i], len(got), len(want))
		}
	}
	if len(want) == 0 {
		return "there are no results to compare"
	}
	return ""
}

func TestTheVerdict(t *testing.T) {
	finding := []string{"io-uring"}
	for name, test := range map[string]struct {
		evidence
		want outcome
	}{
		"works":                              {evidence{stepsBefore: 20, stepsAfter: 400}, works},
		"refused":                            {evidence{foretold: finding, dumpStatus: 3, stepsAfter: 400}, refused},
		"refused, and it ended":              {evidence{foretold: finding, dumpStatus: 3, unfinished: "it ended"}, lost},
		"refused, and its results are wrong": {evidence{foretold: finding, dumpStatus: 3, differs: "step 3"}, lost},
		"the dump failed":                    {evidence{dumpStatus: 1, dumpOutput: "criu failed"}, failed},
		"the dump failed, and it hangs":      {evidence{dumpStatus: 1, unfinished: "it hangs"}, lost},
		"the dump left it in two":            {evidence{dumpStatus: 4, differs: "step 3"}, lost},
		"a part was not dumped":              {evidence{left: []int{7}, stepsBefore: 20, stepsAfter: 400}, lost},
		"the restore failed":                 {evidence{restoreStatus: 1, stepsBefore: 20}, lost},
		"the restore was refused":            {evidence{restoreStatus: 3, stepsBefore: 20}, lost},
		"it hangs after the restore":         {evidence{unfinished: "it hangs", stepsBefore: 20, stepsAfter: 20}, lost},
		"its results are wrong":              {evidence{differs: "step 30", stepsBefore: 20, stepsAfter: 400}, lost},
		"it was over before the dump":        {evidence{stepsBefore: 400, stepsAfter: 400}, lost},
		"it never began":                     {evidence{neverRan: "it ended with status 1"}, lost},
		"a library is missing":               {evidence{missing: "zmq"}, notInstalled},
		"a command is missing":               {evidence{unavailable: "cucriu run"}, notAvailable},
	} {
		t.Run(name, func(t *testing.T) {
			got, why := judge(test.evidence)
			if got != test.want {
				t.Errorf("%s (%s), want %s", got, why, test.want)
			}
			if got != works && got != refused && why == "" {
				t.Errorf("%s, and nothing says why", got)
			}
		})
	}
}

// TestOnlyTheExpectedOutcomeIsRight: a row fails the test in every other case.
func TestOnlyTheExpectedOutcomeIsRight(t *testing.T) {
	foretold := evidence{foretold: []string{"io-uring"}}
	for name, test := range map[string]struct {
		p     program
		got   outcome
		e     evidence
		right bool
	}{
		"works":                      {program{want: works}, works, evidence{}, true},
		"works, foretold otherwise":  {program{want: works}, works, foretold, false},
		"refused instead":            {program{want: works}, refused, foretold, false},
		"lost":                       {program{want: works}, lost, evidence{}, false},
		"the dump failed":            {program{want: works}, failed, evidence{}, false},
		"refused":                    {program{want: refused, finding: "io-uring"}, refused, foretold, true},
		"refused for something else": {program{want: refused, finding: "peer-memory"}, refused, foretold, false},
		"refused without a finding":  {program{want: refused, finding: "io-uring"}, refused, evidence{}, false},
		"works instead":              {program{want: refused, finding: "io-uring"}, works, evidence{}, false},
		"lost instead of refused":    {program{want: refused, finding: "io-uring"}, lost, foretold, false},
		"failed instead of refused":  {program{want: refused, finding: "io-uring"}, failed, foretold, false},
		"not installed":              {program{want: works}, notInstalled, evidence{missing: "zmq"}, true},
		"not available":              {program{want: works}, notAvailable, evidence{}, false},
	} {
		if said := wrong(test.p, test.got, test.e); (said == "") != test.right {
			t.Errorf("%s: %q", name, said)
		}
	}
}

func TestDifferencesBetweenResults(t *testing.T) {
	reference := results("step 1 a\nstep 2 b\nnot a result\ndone\n")
	for name, test := range map[string]struct {
		output string
		equal  bool
	}{
		"equal":             {"step 1 a\nstep 2 b\ndone\n", true},
		"in another order":  {"step 2 b\nsomething else\nstep 1 a\ndone\n", true},
		"another value":     {"step 1 a\nstep 2 c\ndone\n", false},
		"one is missing":    {"step 1 a\ndone\n", false},
		"one is done twice": {"step 1 a\nstep 2 b\nstep 2 b\ndone\n", false},
		"one too many":      {"step 1 a\nstep 2 b\nstep 3 c\ndone\n", false},
		"it is not done":    {"step 1 a\nstep 2 b\n", false},
	} {
		if difference := differences(results(test.output), reference); (difference == "") != test.equal {
			t.Errorf("%s: %q", name, difference)
		}
	}
	if differences(nil, nil) == "" {
		t.Error("no results are as good as right ones")
	}
}
