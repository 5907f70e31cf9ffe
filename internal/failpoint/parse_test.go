package failpoint

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEveryActionIsReadWithItsArguments(t *testing.T) {
	for text, want := range map[string][]Point{
		"":                         nil,
		"dump.lock=error":          {{"dump.lock", []Action{{Verb: Error}}}},
		"dump.lock=hang":           {{"dump.lock", []Action{{Verb: Hang}}}},
		"dump.lock=kill":           {{"dump.lock", []Action{{Verb: Kill}}}},
		"dump.lock=kill 42":        {{"dump.lock", []Action{{Verb: Kill, PIDs: []int{42}}}}},
		"dump.lock=kill-criu":      {{"dump.lock", []Action{{Verb: KillCriu}}}},
		"dump.lock=kill-watcher":   {{"dump.lock", []Action{{Verb: KillWatcher}}}},
		"dump.lock=fill /a b":      {{"dump.lock", []Action{{Verb: Fill, Path: "/a b"}}}},
		"dump.lock=continue 41 42": {{"dump.lock", []Action{{Verb: Continue, PIDs: []int{41, 42}}}}},
		"dump.lock=remove /a/*=":   {{"dump.lock", []Action{{Verb: Remove, Path: "/a/*="}}}},
		"dump.lock=run /bin/true":  {{"dump.lock", []Action{{Verb: Run, Path: "/bin/true"}}}},
		"restore.free memory=hang": {{"restore.free memory", []Action{{Verb: Hang}}}},
		"a=kill-watcher+kill-criu+kill": {
			{"a", []Action{{Verb: KillWatcher}, {Verb: KillCriu}, {Verb: Kill}}},
		},
		"a=error,b=continue 7+kill": {
			{"a", []Action{{Verb: Error}}},
			{"b", []Action{{Verb: Continue, PIDs: []int{7}}, {Verb: Kill}}},
		},
	} {
		t.Run(text, func(t *testing.T) {
			got, err := Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAFailpointThatWouldNotFireIsRefused(t *testing.T) {
	for text, says := range map[string]string{
		"dump.lock":                         `failpoint "dump.lock": want STEP=ACTION`,
		"=kill":                             `failpoint "=kill": want STEP=ACTION`,
		"a=kill,":                           `failpoint "": want STEP=ACTION`,
		"a=error, b=error":                  `failpoint " b=error": want STEP=ACTION`,
		"../a=error":                        `failpoint "../a=error": want STEP=ACTION`,
		"a=":                                `failpoint a: action "": there is no such action`,
		"a=kil":                             `failpoint a: action "kil": there is no such action`,
		"a=Kill":                            `failpoint a: action "Kill": there is no such action`,
		"a=kill+":                           `failpoint a: action "": there is no such action`,
		"a=kill + error":                    `failpoint a: action " error": there is no such action`,
		"a=error now":                       `failpoint a: action "error now": error takes no argument`,
		"a=kill-criu 7":                     `failpoint a: action "kill-criu 7": kill-criu takes no argument`,
		"a=kill 7 8":                        `failpoint a: action "kill 7 8": kill takes one process, not 2`,
		"a=kill seven":                      `failpoint a: action "kill seven": "seven" is no process`,
		"a=kill 0":                          `failpoint a: action "kill 0": "0" is no process`,
		"a=kill -1":                         `failpoint a: action "kill -1": "-1" is no process`,
		"a=continue":                        `failpoint a: action "continue": continue takes processes`,
		"a=continue 7 99999999999999999999": `failpoint a: action "continue 7 99999999999999999999": "99999999999999999999" is no process`,
		"a=fill":                            `failpoint a: action "fill": fill takes a path`,
		"a=remove ":                         `failpoint a: action "remove ": remove takes a path`,
		"a=run":                             `failpoint a: action "run": run takes a path`,
	} {
		t.Run(text, func(t *testing.T) {
			if points, err := Parse(text); err == nil || err.Error() != says || points != nil {
				t.Errorf("%v, %v, want %s", points, err, says)
			}
		})
	}
}

func TestOnlyTheStepThatIsNamedGoesWrong(t *testing.T) {
	points, err := Parse("dump.lock=kill-watcher,dump=error,dump.lock=kill+hang")
	if err != nil {
		t.Fatal(err)
	}
	for step, want := range map[string][]Action{
		"dump.lock": {{Verb: KillWatcher}, {Verb: Kill}, {Verb: Hang}},
		"dump":      {{Verb: Error}},
		"dump.loc":  nil,
		"lock":      nil,
		"":          nil,
	} {
		t.Run(step, func(t *testing.T) {
			if diff := cmp.Diff(want, At(points, step)); diff != "" {
				t.Errorf("%q: %s", step, diff)
			}
		})
	}
}

// FuzzParse checks that accepted text means the same when it is written again, and that
// refused text gives no points.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "a=kill", "dump.freeze=error,dump.filling=kill-watcher+kill", "a=continue 1 2+fill /a b", "a=kill 7,a=run /x=y", "a=,b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		points, err := Parse(text)
		if err != nil {
			if points != nil {
				t.Fatalf("an error came with %v: %v", points, err)
			}
			return
		}
		var written []string
		for _, point := range points {
			if len(point.Actions) == 0 {
				t.Fatalf("%s has no action", point.Step)
			}
			var actions []string
			for _, action := range point.Actions {
				words := []string{string(action.Verb)}
				for _, pid := range action.PIDs {
					words = append(words, strconv.Itoa(pid))
				}
				if action.Path != "" {
					words = append(words, action.Path)
				}
				actions = append(actions, strings.Join(words, " "))
			}
			written = append(written, point.Step+"="+strings.Join(actions, "+"))
		}
		again, err := Parse(strings.Join(written, ","))
		if diff := cmp.Diff(points, again); err != nil || diff != "" {
			t.Fatalf("%q is read again from %q with %v and the difference\n%s", text, written, err, diff)
		}
	})
}
