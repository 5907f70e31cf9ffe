package failpoint

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEveryActionIsReadWithItsArgument(t *testing.T) {
	for text, want := range map[string]map[string][]Action{
		"":                         {},
		"dump.lock=error":          {"dump.lock": {{"error", ""}}},
		"dump.lock=kill":           {"dump.lock": {{"kill", ""}}},
		"dump.lock=kill 42":        {"dump.lock": {{"kill", "42"}}},
		"dump.lock=fill /a b":      {"dump.lock": {{"fill", "/a b"}}},
		"dump.lock=continue 41 42": {"dump.lock": {{"continue", "41 42"}}},
		"dump.lock=remove /a/*=":   {"dump.lock": {{"remove", "/a/*="}}},
		"restore.free memory=hang": {"restore.free memory": {{"hang", ""}}},
		"a=kill-watcher+run /b,b=error,a=kill": {
			"a": {{"kill-watcher", ""}, {"run", "/b"}, {"kill", ""}},
			"b": {{"error", ""}},
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
		"dump.lock":        `failpoint "dump.lock": want STEP=ACTION`,
		"=kill":            `failpoint "=kill": want STEP=ACTION`,
		"a=kill,":          `failpoint "": want STEP=ACTION`,
		"a=error, b=error": `failpoint " b=error": want STEP=ACTION`,
		"../a=error":       `failpoint "../a=error": want STEP=ACTION`,
		"a=":               `failpoint a: invalid action ""`,
		"a=kil":            `failpoint a: invalid action "kil"`,
		"a=kill+":          `failpoint a: invalid action ""`,
		"a=kill + error":   `failpoint a: invalid action "kill "`,
		"a=error now":      `failpoint a: invalid action "error now"`,
		"a=continue":       `failpoint a: invalid action "continue"`,
		"a=remove ":        `failpoint a: invalid action "remove "`,
	} {
		t.Run(text, func(t *testing.T) {
			if points, err := Parse(text); err == nil || err.Error() != says {
				t.Errorf("%v, %v, want %s", points, err, says)
			}
		})
	}
}
