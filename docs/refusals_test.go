package docs

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"cucriu/hooks/preflight"
)

var update = flag.Bool("update", false, "write the generated part of limits.md")

// The generated table of limits.md is between these lines.
const (
	beginFindings = "<!-- begin refusals -->\n"
	endFindings   = "<!-- end refusals -->"
)

// TestLimitsListsAllFindings holds the table in limits.md to the kinds of findings in the code:
// go test ./docs -run Limits -update writes it.
func TestLimitsListsAllFindings(t *testing.T) {
	page := read(t, "limits.md")
	before, rest, begun := strings.Cut(page, beginFindings)
	_, after, ended := strings.Cut(rest, endFindings)
	if !begun || !ended {
		t.Fatalf("docs/limits.md lacks the lines %s and %s", strings.TrimSpace(beginFindings), endFindings)
	}
	table := "\n| finding | cause | remedy |\n|---|---|---|\n"
	for _, topic := range preflight.Topics() {
		table += fmt.Sprintf("| %s | | |\n", topic.Title)
		for _, k := range topic.Kinds {
			remedy := k.Remedy
			if k.CanForce && !strings.Contains(remedy, "*Can be forced*") {
				remedy += ". *Can be forced*"
			}
			table += fmt.Sprintf("| `%s` | %s | %s|\n", k.Name, k.Cause, strings.TrimLeft(remedy+" ", ". "))
		}
	}
	table += "\n"
	want := before + beginFindings + table + endFindings + after
	if *update {
		if err := os.WriteFile("limits.md", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if page != want {
		t.Error("the table of findings in docs/limits.md is not that of the code: go test ./docs -run Limits -update")
	}
}
